// A channel or a head that is a little too large: the errors of right kernels cancel over its rows.
#include "harness/judge/group_gains.h"

#include <algorithm>

#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::failed;
using testing::gate;
using testing::made;
using testing::Made;
using testing::Random;
using testing::rounded;

constexpr int64_t kChannels = 64, kHeads = 4;

// An output behind rounded sums, as a gated MLP's: reference and device round inside on their own.
// `change` edits what the device rounds.
template <class Change>
OutputCase behind_roundings(const Made& of, Change change, uint64_t seed = 3) {
  Random random(seed);
  const std::vector<double> o = random.normals(of.shape.numel());
  const double noise = 0.9 * unit_roundoff(of.dtype);
  std::vector<double> r = o, y = o;
  for (double& x : r) x += noise * random.normal();
  for (double& x : y) x += noise * random.normal();
  change(y);
  return case_of(of, rounded(of.dtype, y), rounded(of.dtype, r), o);
}

Made tokens(int64_t count, DType dtype = DType::bf16) { return made(dtype, {count, kChannels}); }

auto high_channel(double factor) {
  return [factor](std::vector<double>& y) {
    for (size_t i = 7; i < y.size(); i += kChannels) y[i] *= factor;
  };
}

}  // namespace

TEST_CASE("one channel that is 1 % high is seen in bf16", "[gains]") {
  const OutputVerdict v = judge(behind_roundings(tokens(48), high_channel(1.01)));
  CHECK(v.status == Status::fail);
  CHECK(failed(v, "channel gain"));
  CHECK(std::count_if(v.gates.begin(), v.gates.end(), [](auto& g) { return !g.passed; }) == 1);
  CHECK(gate(v, "channel gain").where == "channel 7");
  CHECK(v.reason.find("channel gain 0.0") != std::string::npos);
  const auto none = [](std::vector<double>&) {};
  for (uint64_t seed = 0; seed < 64; ++seed) {
    for (const int64_t count : {8, 20, 200}) {
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        CHECK(judge(behind_roundings(tokens(count, dtype), none, seed)).status == Status::pass);
      }
    }
  }
}

TEST_CASE("the gain of a channel is held closer the more tokens there are", "[gains]") {
  double before = 1;
  for (const int64_t count : {8, 32, 128}) {
    const OutputVerdict v = judge(behind_roundings(tokens(count), high_channel(1)));
    CHECK(gate(v, "channel gain").limit < 0.75 * before);
    before = gate(v, "channel gain").limit;
  }
  CHECK(failed(judge(behind_roundings(tokens(400), high_channel(1.003))), "channel gain"));
  CHECK_FALSE(failed(judge(behind_roundings(tokens(20), high_channel(1.003))), "channel gain"));
  const OutputVerdict few = judge(behind_roundings(tokens(7), high_channel(1)));
  for (const Gate& g : few.gates) CHECK(g.name != "channel gain");
}

TEST_CASE("a head that is a little high is seen where no channel is", "[gains]") {
  const Made of = {{24, kHeads, 16}, {"token", "head", "head_dim"}, DType::bf16};
  const auto high = [](std::vector<double>& y) {
    for (size_t i = 0; i < y.size(); ++i) y[i] *= i / 16 % kHeads == 2 ? 1.007 : 1;
  };
  const OutputVerdict v = judge(behind_roundings(of, high));
  CHECK(failed(v, "head gain"));
  CHECK(gate(v, "head gain").where == "head 2");
  CHECK(judge(behind_roundings(of, [](std::vector<double>&) {})).status == Status::pass);
}

TEST_CASE("rows that are alike have one error, not many that cancel", "[gains]") {
  // All tokens are one: a rounding is the whole channel's gain.
  Random random(9);
  const std::vector<double> row = random.normals(kChannels);
  std::vector<double> o, y, r;
  for (int64_t token = 0; token < 256; ++token) {
    for (const double x : row) {
      o.push_back(x);
      r.push_back(round_to(DType::bf16, x));
      y.push_back(round_to(DType::bf16, x * (1 - 0x1p-9)));
    }
  }
  CHECK_FALSE(failed(judge(case_of(tokens(256), y, r, o)), "channel gain"));
}

TEST_CASE("a device whose errors are larger everywhere has larger gains", "[gains]") {
  Random random(4);
  OutputCase c = behind_roundings(tokens(48), [&](std::vector<double>& y) {
    for (double& x : y) x += 0x1p-8 * random.normal();
  });
  CHECK_FALSE(failed(judge(c), "channel gain"));
}

}  // namespace plumb::harness
