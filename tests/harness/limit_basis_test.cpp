// What limits rest on: a reference that correct code cannot have given lends none, simulated
// kernels do, and a block that does not make o is reported first.
#include "harness/judge/limit_basis.h"

#include <algorithm>

#include "harness/judge/spread_limit.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::gate;
using testing::made;
using testing::Random;
using testing::rounded;
using testing::tensor_of;

// o is normal; r is off by so much of it, y by as much or not at all.
OutputCase off_by(double reference, double device) {
  Random random(3);
  const std::vector<double> o = random.normals(512), noise = random.normals(512);
  std::vector<double> r = o, y = o;
  for (size_t i = 0; i < o.size(); ++i) {
    r[i] += reference * noise[i];
    y[i] += device * noise[i];
  }
  return case_of(made(DType::f32), y, rounded(DType::f32, r), o);
}

Spread spread_of_error(double mean, double deviation) {
  Spread out{16, {}};
  for (const char* name : {"tensor", "token", "channel", "tile", "element", "gain"}) {
    out.gates.push_back({name, mean, deviation, mean + 2 * deviation});
  }
  return out;
}

}  // namespace

TEST_CASE("a reference far beyond its floor lends no limit", "[basis]") {
  // What a variance in bf16 does to a norm in float32.
  const OutputVerdict same = judge(off_by(1e-3, 1e-3));
  CHECK(same.status == Status::fail);
  CHECK(same.golden_suspect.find("golden suspect: the reference's ") == 0);
  CHECK(judge(off_by(1e-3, 0)).status == Status::pass);
  CHECK_FALSE(judge(off_by(1e-3, 0)).golden_suspect.empty());
  CHECK(judge(off_by(3e-7, 3e-7)).status == Status::pass);
  CHECK(judge(off_by(3e-7, 3e-7)).golden_suspect.empty());
}

TEST_CASE("simulated kernels that err as much acquit a reference and a device", "[basis]") {
  OutputCase c = off_by(1e-3, 1e-3);
  c.allowance.spread = spread_of_error(1e-3, 1e-4);
  CHECK(judge(c).status == Status::pass);
  CHECK(judge(c).golden_suspect.empty());
  CHECK(gate(judge(c), "tensor").limit >= spread_limit(c.allowance.spread->gates[0], DType::f32));
  SECTION("unless the recorded run rounded below its dtype") {
    c.allowance.narrowed = "operation 2 of 5 of the recorded run, mean, stores bf16";
    const OutputVerdict v = judge(c);
    CHECK(v.status == Status::fail);
    CHECK(v.golden_suspect.find("mean, stores bf16") != std::string::npos);
  }
  SECTION("of a composite they replace the floors of its sums, too") {
    c = off_by(3e-7, 3e-6);
    c.rule.stages.assign(10, {4096, {}});
    CHECK(judge(c).status == Status::pass);
    c.rule.composite = true;
    c.allowance.spread = spread_of_error(3e-7, 3e-8);
    CHECK(judge(c).status == Status::fail);
  }
}

TEST_CASE("what correct kernels cannot decide is blind, neither failed nor passed", "[basis]") {
  OutputCase c = off_by(0.4, 0);
  c.allowance.spread = spread_of_error(0.4, 0.1);
  CHECK(judge(c).status == Status::blind);
  c.evidence.y = off_by(0, 30).evidence.y;
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::blind);
  CHECK(v.reason.find("ill conditioned") == 0);
  SECTION("but a NaN is no question of conditions") {
    c.evidence.y.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
    CHECK(judge(c).status == Status::fail);
  }
}

TEST_CASE("rows that correct kernels do not agree on are set aside", "[basis]") {
  constexpr size_t kRow = 5, kColumns = 32;
  const std::vector<double> o = Random(3).normals(512);
  const auto made_of = [&](double in_row, double elsewhere) {
    std::vector<double> y = o;
    for (size_t i = 0; i < y.size(); ++i) y[i] *= i / kColumns == kRow ? in_row : elsewhere;
    return rounded(DType::f32, y);
  };
  const auto judged = [&](double in_row, double elsewhere, bool simulated = true) {
    OutputCase c = case_of(made(DType::f32), made_of(in_row, elsewhere), made_of(0, 1), o);
    if (simulated) {
      c.allowance.simulate = [&](int count) {
        const Tensor zero = tensor_of(DType::f32, {16, 32}, made_of(0, 1));
        return std::vector<Tensor>(static_cast<size_t>(count), zero);
      };
    }
    return judge(c);
  };
  for (const double anything : {0.0, 1.0, 7.0}) {
    const OutputVerdict v = judged(anything, 1);
    CHECK(v.status == Status::pass);
    CHECK(v.ill_conditioned.find("1 of 16 rows are ill conditioned") == 0);
    CHECK(v.ill_conditioned.find("set aside: token 5") != std::string::npos);
    CHECK(judged(anything, 1.0001).status == Status::fail);
  }
  CHECK(judged(7, 1, false).status == Status::fail);
  CHECK(judged(0, 1, false).ill_conditioned.empty());
}

TEST_CASE("an output of ill-conditioned rows alone is blind, and so is its checkpoint", "[basis]") {
  OutputCase c = off_by(0, 0);
  c.evidence.ill_conditioned = host_tensor(DType::boolean, c.evidence.y.shape());
  std::fill_n(c.evidence.ill_conditioned.data<uint8_t>(), 512, uint8_t{1});
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::blind);
  CHECK(v.reason.find("16 of 16 rows are ill conditioned") == 0);
  CHECK(combine({judge(off_by(0, 0)), v}).status == Status::blind);
  c.evidence.y.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(judge(c).status == Status::fail);
}

TEST_CASE("the stated error of a reference is of all rows, in units of o", "[basis]") {
  OutputCase c = off_by(0.25, 0);
  const double all = judge(c).recorded_error;
  CHECK(all == Approx(0.25).epsilon(0.2));
  c.evidence.ill_conditioned = host_tensor(DType::boolean, c.evidence.y.shape());
  std::fill_n(c.evidence.ill_conditioned.data<uint8_t>(), 512, uint8_t{0});
  std::fill_n(c.evidence.ill_conditioned.data<uint8_t>() + 32, 32, uint8_t{1});
  CHECK(judge(c).recorded_error == Approx(all).epsilon(1e-12));
  const std::vector<double> o(512, 3 * 0x1p-149);
  const std::vector<double> r(512, 4 * 0x1p-149);
  OutputCase small = case_of(made(DType::f32), o, r, o);
  small.evidence.oracle = tensor_of(DType::f64, {16, 32}, o);
  CHECK(judge(small).recorded_error == Approx(1.0 / 3));
}

TEST_CASE("denormal results are measured in their steps", "[basis]") {
  std::vector<double> o = Random(3).normals(512);
  for (double& value : o) value *= 0x1p-134;
  const auto judged = [&](const std::vector<double>& y) {
    OutputCase c = case_of(made(DType::f32), y, rounded(DType::f32, o), o);
    c.evidence.delta = {};
    c.evidence.oracle = tensor_of(DType::f64, {16, 32}, o);
    return judge(c);
  };
  CHECK(judged(rounded(DType::f32, o)).status == Status::pass);
  std::vector<double> wrong = o;
  for (double& value : wrong) value *= 1.1;
  CHECK(judged(rounded(DType::f32, wrong)).status == Status::fail);
  o[7] = 1;
  std::vector<double> flushed = rounded(DType::f32, o);
  for (double& value : flushed) value = std::fabs(value) < 0x1p-126 ? 0 : value;
  const OutputVerdict v = judged(flushed);
  CHECK(v.status == Status::fail);
  CHECK(v.reason.find("it flushes denormals to zero: y is 0 in all 511 places") !=
        std::string::npos);
}

TEST_CASE("our own simulations count where the recording has none", "[basis]") {
  OutputCase c = off_by(3e-7, 3e-5);
  int runs = 0;
  c.allowance.simulate = [&](int count) {
    runs = count;
    std::vector<Tensor> out;
    for (int k = 0; k < count; ++k) out.push_back(off_by(0, 3e-5 * (1 + 0.1 * k)).evidence.y);
    return out;
  };
  CHECK(judge(c).status == Status::pass);
  CHECK(runs == static_cast<int>(kLimits.spread_runs));
  c.allowance.simulate = {};
  CHECK(judge(c).status == Status::fail);
}

TEST_CASE("kernels that round elsewhere draw new roundings", "[basis]") {
  OutputCase c = off_by(3e-7, 3e-5);
  int runs = 0;
  c.allowance.redraw = [&](int count) {
    runs = count;
    std::vector<Tensor> out;
    for (int k = 0; k < count; ++k) out.push_back(off_by(0, 1e-5 * (1 + 0.1 * k)).evidence.y);
    return out;
  };
  CHECK(judge(c).status == Status::fail);  // too far off for a rounding
  CHECK(runs == 0);
  c.evidence.y = off_by(0, 5e-6).evidence.y;
  CHECK(judge(c).status == Status::pass);
  CHECK(runs == static_cast<int>(kLimits.spread_runs));
  c.allowance.redraw = {};
  CHECK(judge(c).status == Status::fail);
}

TEST_CASE("a rounded constant moves a whole tensor by its rounding", "[basis]") {
  std::vector<double> o = Random(4).normals(512);
  for (double& value : o) value = static_cast<float>(value);
  const auto scaled_by = [&](double factor) {
    std::vector<double> y = o;
    for (double& value : y) value *= factor;
    OutputCase c = case_of(made(DType::f32), y, rounded(DType::f32, o), o);
    c.rule.stages = {};
    return judge(c).status;
  };
  CHECK(scaled_by(1 + 1.5 * 0x1p-24) == Status::pass);
  CHECK(scaled_by(1 + 3 * 0x1p-24) == Status::fail);
}

TEST_CASE("a float64 block that does not make o fails whatever the device does", "[basis]") {
  OutputCase c = off_by(3e-7, 0);
  c.evidence.float64_share = 0.9;
  CHECK(judge(c).status == Status::pass);
  c.evidence.float64_share = 1e6;
  c.evidence.float64_at = "token 3, channel 4";
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::fail);
  CHECK(v.reason.find("the float64 block is 1e+06 times") == 0);
}

TEST_CASE("what a correct kernel that rounds elsewhere errs, another may", "[basis]") {
  OutputCase c = off_by(2e-7, 3e-6);
  CHECK(judge(c).status == Status::fail);
  c.evidence.peers = {off_by(0, 2e-6).evidence.y};
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::pass);
  CHECK(v.reference.tensor > 1e-6);
  CHECK(v.golden_suspect.empty());
  SECTION("but not far more") {
    c.evidence.y = off_by(0, 1e-4).evidence.y;
    CHECK(judge(c).status == Status::fail);
  }
}

}  // namespace plumb::harness
