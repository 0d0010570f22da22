#include "harness/judge/float64_agreement.h"

#include <cmath>

#include "tests/catch.h"

namespace plumb::harness {
namespace {

TEST_CASE("float64 agreement: delta is rounded to float32, where that has denormals, too") {
  const double o = 1.25e-39 + 3e-46;  // of which a float32 reference has 1.25e-39
  const double delta = 3e-46;         // a quarter of the smallest float32
  const auto share = [&](double y) {
    return float64_agreement({y}, {o}, {delta}, {1}, std::fabs(o)).share;
  };
  CHECK(share(1.25e-39) < 1);  // the recorded o, whose delta was rounded to zero
  CHECK(share(1.25e-39 + 1.5e-45) > 1);
  CHECK(float64_agreement({o}, {1.25e-39}, {}, {1}, 1.25e-39).share < 1);  // nor kept at all
  CHECK(float64_agreement({1.0 + 2e-12}, {1.0}, {}, {1}, 1.0).share > 1);
}

}  // namespace
}  // namespace plumb::harness
