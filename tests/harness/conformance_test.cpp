#include "harness/judge/conformance.h"

#include "harness/judge/verdict.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::rounded;
using testing::tensor_of;

std::vector<double> with_differences(std::vector<double> values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] *= 2;
  return values;
}

Conformance run(int64_t n, int64_t differ, double accumulation = 0, double cascade = 0,
                int64_t w = 0) {
  const std::vector<double> model(static_cast<size_t>(n), 1);
  return conformance(with_differences(model, differ), model,
                     std::vector<uint8_t>(static_cast<size_t>(n), 1),
                     {accumulation, 0x1p-8, cascade, w, 1, {}});
}

}  // namespace

TEST_CASE("the share of differing bits has a limit", "[conformance]") {
  SECTION("eight in small outputs") {
    CHECK(run(64, 8).limit == 8);
    CHECK(run(64, 8).passed);
    CHECK_FALSE(run(64, 9).passed);
    CHECK(run(64, 9).first == 0);
  }
  SECTION("n q + 3 sqrt(n q) in large ones") {
    const double q = 0.003 + 3 * 0x1p-16 / 0x1p-8;
    const Conformance c = run(10000, 5, 0x1p-16);
    CHECK(c.q == Approx(q));
    CHECK(c.limit == Approx(10000 * q + 3 * std::sqrt(10000 * q)));
    CHECK(run(10000, static_cast<int64_t>(c.limit), 0x1p-16).passed);
    CHECK_FALSE(run(10000, static_cast<int64_t>(c.limit) + 1, 0x1p-16).passed);
  }
  SECTION("one upstream rounding feeds w outputs") {
    CHECK(run(64, 24, 0, 0, 16).passed);
    CHECK_FALSE(run(64, 25, 0, 0, 16).passed);
  }
  SECTION("cascaded stages add 2 sqrt(3 F_1 / u)") {
    CHECK(run(1000, 0, 0, 0x1p-18).q == Approx(0.003 + 2 * std::sqrt(3 * 0x1p-10)));
  }
}

TEST_CASE("equal values are equal whatever their bits", "[conformance]") {
  const std::vector<double> y = {-0.0, kNan, 1, kNan}, model = {0.0, kNan, 1, 2};
  const ConformanceRule rule{0, 0x1p-8, 0, 0, 1, {}};
  CHECK(conformance(y, model, {1, 1, 1, 1}, rule).differ == 1);
  CHECK(conformance(y, model, {1, 1, 1, 0}, rule).differ == 0);
  CHECK(conformance(y, model, {1, 1, 1, 0}, rule).n == 3);
}

// A row of a norm whose commonest significand the exact scale leaves just below a tie.
TEST_CASE("values of one significand may fall to the other side of a tie together",
          "[conformance]") {
  constexpr int64_t kColumns = 4096;
  testing::Random random(3);
  std::vector<double> x = rounded(DType::bf16, random.normals(kColumns));
  const Tensor stored = tensor_of(DType::bf16, {1, kColumns}, x);
  const int64_t w = alike_in_row(stored);
  CHECK(w >= 32);  // as many as there are on average
  CHECK(w < 100);
  CHECK(alike_in_row(tensor_of(DType::f32, {1, kColumns}, x)) == 0);
  CHECK(alike_in_row(tensor_of(DType::bf16, {2, 3}, {0, 0, 0, 1.5, -3, 2})) == 1);

  const double tie = 1 + 0x1p-8;  // between 1 and the bf16 above it
  const auto scaled = [&](double scale) {
    std::vector<double> y;
    for (const double v : x) y.push_back(v * scale);
    return rounded(DType::bf16, y);
  };
  const std::vector<double> model = scaled(tie * (1 - 1e-7)), kernel = scaled(tie * (1 + 1e-7));
  const std::vector<uint8_t> valid(kColumns, 1);
  CHECK_FALSE(conformance(kernel, model, valid, {0, 0x1p-8, 0, 0, kColumns, {}}).passed);
  CHECK(conformance(kernel, model, valid, {0, 0x1p-8, 0, w, kColumns, {}}).passed);
  CHECK_FALSE(
      conformance(scaled(tie * 1.005), model, valid, {0, 0x1p-8, 0, w, kColumns, {}}).passed);
}

TEST_CASE("conformance is for 16-bit outputs of 64 elements", "[conformance]") {
  CHECK(conformance_applies(DType::bf16, 64));
  CHECK(conformance_applies(DType::f16, 1000));
  CHECK_FALSE(conformance_applies(DType::bf16, 63));
  CHECK_FALSE(conformance_applies(DType::f32, 1000));
  CHECK_FALSE(conformance_applies(DType::f8_e4m3, 1000));
}

TEST_CASE("judge() compares with the model only where that decides", "[conformance]") {
  testing::Random random(6);
  const std::vector<double> o = random.normals(16 * 32);
  const DType dtype = DType::bf16;
  const std::vector<double> right = rounded(dtype, o);
  std::vector<double> odd = right;  // one bit off in an eighth of the elements: below bf16 noise
  for (size_t i = 0; i < odd.size(); i += 8) {
    odd[i] = right[i] + (o[i] > right[i] ? 1 : -1) * 0x1p-7 *
                            std::exp2(std::floor(std::log2(std::fabs(o[i]))));
  }
  OutputCase c = case_of({{16, 32}, {"token", "channel"}, dtype}, odd, right, o);
  CHECK(judge(c).status == Status::pass);
  CHECK_FALSE(judge(c).conformance.has_value());
  c.evidence.model = tensor_of(dtype, {16, 32}, right);
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::fail);
  CHECK(v.gates.back().name == "conformance");
  CHECK(v.conformance->differ == 64);
  CHECK(v.conformance->n == 512);
  CHECK(v.reason.find("64 of 512 elements differ from the contract's rounded model") == 0);
  CHECK(v.where->region == "channel mod 8 = 0");
  c.rule.cascade_outputs = 64;
  CHECK(judge(c).status == Status::pass);
  c.rule.cascade_outputs = 0;
  c.rule.cascade_stages = {{1 << 14, {}}};
  CHECK(judge(c).status == Status::pass);
  c.rule.cascade_stages.clear();
  std::vector<double> mask(512, 1);
  for (size_t i = 0; i < mask.size(); i += 8) mask[i] = i >= 64 ? 0 : 1;
  c.evidence.valid = tensor_of(DType::boolean, {16, 32}, mask);
  c.evidence.valid_axes = {"token", "channel"};
  CHECK(judge(c).conformance->differ == 8);
  CHECK(judge(c).status == Status::pass);
  c.evidence.valid = Tensor();
  c.rule.conformance = false;
  CHECK(judge(c).status == Status::pass);
}

}  // namespace plumb::harness
