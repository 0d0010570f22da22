// What simulated float32 arithmetic loses, on the oracle.
#include <cmath>
#include <limits>
#include <set>

#include "kernels/oracle/arithmetic.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The second weight of a softmax over these scores.
double second_weight(const Values& scores, uint64_t seed) {
  const auto oracle = open_device("oracle");
  Arithmetic arithmetic{.noise = seed};
  const ArithmeticScope scope(arithmetic);
  Guarded x(*oracle, DType::f32, {1, 2}), out(*oracle, DType::f32, {1, 2});
  x.set(scores);
  oracle->ops().softmax(out, x);
  return out.get()[1];
}

double relative_error(const Values& scores) {
  constexpr int kRuns = 200;
  const double p = std::exp(scores[1] - scores[0]), exact = p / (1 + p);
  double sum = 0;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    sum += std::pow(second_weight(scores, seed) / exact - 1, 2);
  }
  return std::sqrt(sum / kRuns);
}

TEST_CASE("simulated softmax: a score far below the maximum is rounded when that is subtracted") {
  const double near = relative_error({0, -1}), far = relative_error({0, -80});
  INFO(near << ' ' << far);
  CHECK(near < 4 * kU32);
  CHECK(far > 20 * kU32);
  CHECK(far < 80 * kU32);
}

TEST_CASE("rounded at random: what needs no rounding stays, all else goes to either neighbour") {
  Arithmetic arithmetic{.noise = 1, .random_rounding = true};
  const ArithmeticScope scope(arithmetic);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const double step = spacing(dtype, 1), below = step / 2;
    std::set<double> seen;
    for (int i = 0; i < 100; ++i) {
      for (const double exact : {0.0, -0.0, 1.0, -2.0, 1 + step, 0x1p-14, 1 - below}) {
        REQUIRE(round_in_run(dtype, exact) == exact);
      }
      seen.insert(round_in_run(dtype, 1 + step / 4));
    }
    CHECK(seen == std::set<double>{1, 1 + step});
  }
}

TEST_CASE("simulated softmax: a score of minus infinity stays a weight of zero") {
  CHECK(second_weight({0, -kInfinity}, 1) == 0);
  CHECK(second_weight({-kInfinity, -kInfinity}, 1) == 0);
}

}  // namespace
}  // namespace plumb
