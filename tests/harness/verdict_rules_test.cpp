#include <limits>

#include "harness/judge/verdict.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::changed;
using testing::failed;
using testing::gate;
using testing::made;
using testing::Random;
using testing::rounded;
using testing::tensor_of;

}  // namespace

TEST_CASE("bitwise contracts", "[verdict]") {
  OutputCase c = changed(DType::bf16, [](auto&) {});
  c.rule.exact = true;
  CHECK(judge(c).status == Status::pass);
  CHECK(gate(judge(c), "bits").limit == 0);
  SECTION("one bit") {
    c.evidence.y.data<uint16_t>()[37] ^= 1;
    const OutputVerdict v = judge(c);
    CHECK(v.status == Status::fail);
    CHECK(
        v.reason.find(
            "1 of 512 elements differ from the expected result, the first at token 1, channel 5") ==
        0);
    CHECK(v.where->region == "token 1, channel 5");
  }
  SECTION("three bits") {
    for (const size_t i : {37, 40, 511}) c.evidence.y.data<uint16_t>()[i] ^= 1;
    CHECK(gate(judge(c), "bits").statistic == 3);
  }
  SECTION("zero has no sign, NaN no payload") {
    std::vector<double> values(512, 1);
    values[0] = 0;
    values[1] = kNan;
    values[2] = -kInf;
    c.evidence.delta = Tensor();
    c.evidence.reference = tensor_of(DType::bf16, {16, 32}, values);
    c.evidence.y = tensor_of(DType::bf16, {16, 32}, values);
    c.evidence.y.data<uint16_t>()[0] = 0x8000;
    c.evidence.y.data<uint16_t>()[1] = 0xffff;
    CHECK(judge(c).status == Status::pass);
    c.evidence.y.data<uint16_t>()[2] = 0x7f80;
    CHECK(judge(c).status == Status::fail);
  }
  SECTION("y is held to round(o), not to the reference") {
    const std::vector<double> o(512, 1 + 0x1p-7);
    std::vector<double> r = o;
    r[3] = 1;
    c = case_of(made(DType::bf16), r, r, o);
    c.rule.exact = true;
    CHECK(judge(c).status == Status::fail);
  }
  SECTION("integers and masks are always bitwise") {
    const std::vector<double> mask = {1, 0, 1, 1};
    OutputCase m;
    m.evidence.name = "mask";
    m.evidence.axes = {"token", "kv_token"};
    m.evidence.reference = tensor_of(DType::boolean, {2, 2}, mask);
    m.evidence.y = tensor_of(DType::boolean, {2, 2}, mask);
    m.rule.contract.storage = DType::bf16;
    CHECK(judge(m).status == Status::pass);
    m.evidence.y.data<uint8_t>()[1] = 1;
    CHECK(judge(m).status == Status::fail);
  }
}

TEST_CASE("float64 outputs agree to 1e-12 and the rounding of delta", "[verdict]") {
  Random random(12);
  const std::vector<double> o = random.normals(512), r = rounded(DType::bf16, o);
  OutputCase c = case_of(made(DType::bf16), r, r, o);
  const auto run = [&](double relative_to_max, double relative_to_delta, size_t at) {
    const std::vector<double> delta = testing::values_of(c.evidence.delta);
    std::vector<double> y(512);
    double largest = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = r[i] + delta[i];
      largest = std::max(largest, std::fabs(y[i]));
    }
    y[at] += relative_to_max * largest + relative_to_delta * std::fabs(delta[at]);
    OutputCase f = c;
    f.evidence.y = tensor_of(DType::f64, {16, 32}, y);
    return judge(f);
  };
  const size_t at = GENERATE(0u, 300u);
  CHECK(run(0, 0, at).status == Status::pass);
  CHECK(run(0.99e-12, 0.99 * 0x1p-24, at).status == Status::pass);
  CHECK(run(1.01e-12, 1.01 * 0x1p-24, at).status == Status::fail);
  CHECK(failed(run(1e-8, 0, at), "float64 agreement"));
  CHECK(run(kNan, 0, at).status == Status::fail);
  CHECK(judge(c).status == Status::pass);
  SECTION("exact copies stay exact without a delta") {
    OutputCase copy;
    copy.evidence.name = "keys";
    copy.evidence.axes = {"token", "channel"};
    copy.rule.exact = true;
    copy.rule.contract.storage = DType::bf16;
    copy.evidence.reference = tensor_of(DType::bf16, {16, 32}, r);
    std::vector<double> y = r;
    copy.evidence.y = tensor_of(DType::f64, {16, 32}, y);
    CHECK(judge(copy).status == Status::pass);
    y[5] *= 1 + 1e-15;
    copy.evidence.y = tensor_of(DType::f64, {16, 32}, y);
    CHECK(judge(copy).status == Status::fail);
  }
}

TEST_CASE("outputs that prove nothing are blind", "[verdict]") {
  const DType dtype = DType::bf16;
  const auto status = [&](const Shape& shape, const std::vector<double>& values) {
    return judge(case_of(made(dtype, shape), values, values, values));
  };
  CHECK(status({4, 16}, std::vector<double>(64, 0)).status == Status::blind);
  CHECK(status({4, 16}, std::vector<double>(64, 0)).reason ==
        "every element of the output is zero");
  CHECK(status({4, 16}, std::vector<double>(64, 3)).reason == "every element of the output is 3");
  CHECK(status({0, 16}, {}).reason == "the output is empty");
  CHECK(status({1, 1}, {2}).status == Status::pass);
  CHECK(status({1, 1}, {0}).status == Status::blind);
  CHECK(status({1, 2}, {0, 1}).status == Status::pass);
  SECTION("but failing comes first") {
    std::vector<double> y(64, 3);
    y[0] = 4;
    const std::vector<double> o(64, 3);
    CHECK(judge(case_of(made(dtype, {4, 16}), y, o, o)).status == Status::fail);
  }
  SECTION("a constant is right when it is rounded right") {
    const std::vector<double> o(64, 1 + 0x1p-8 - 0x1p-20);
    CHECK(judge(case_of(made(dtype, {4, 16}), rounded(dtype, o), rounded(dtype, o), o)).status ==
          Status::blind);
  }
  SECTION("no valid element") {
    OutputCase c = changed(dtype, [](auto&) {});
    c.evidence.valid = tensor_of(DType::boolean, {16}, std::vector<double>(16, 0));
    c.evidence.valid_axes = {"token"};
    CHECK(judge(c).reason == "no element of the output is valid");
  }
  SECTION("infinities among zeros are a pattern") {
    OutputCase c = case_of(made(dtype, {1, 2}), {0, -kInf}, {0, -kInf}, {0, -kInf});
    c.evidence.delta = Tensor();
    c.rule.exact = true;
    CHECK(judge(c).status == Status::pass);
  }
}

TEST_CASE("structure comes first", "[verdict]") {
  OutputCase c = changed(DType::bf16, [](auto&) {});
  c.evidence.y = tensor_of(DType::bf16, {32, 16}, std::vector<double>(512, 1));
  CHECK(judge(c).status == Status::fail);
  CHECK(judge(c).reason == "output is bf16 [32, 16], expected bf16 [16, 32]");
  c.evidence.y = tensor_of(DType::f32, {16, 32}, std::vector<double>(512, 1));
  CHECK(judge(c).reason == "output is f32 [16, 32], expected bf16 [16, 32]");
  c.evidence.y = Tensor();
  CHECK(judge(c).status == Status::fail);
}

TEST_CASE("a recording that contradicts itself is bad input", "[verdict]") {
  OutputCase c = changed(DType::bf16, [](auto&) {});
  c.evidence.delta.data<float>()[33] = std::numeric_limits<float>::quiet_NaN();
  CHECK(judge(c).status == Status::bad_input);
  CHECK(judge(c).reason.find("at token 1, channel 1") != std::string::npos);
}

TEST_CASE("cases that cannot be judged are refused", "[verdict]") {
  OutputCase c = changed(DType::bf16, [](auto&) {});
  OutputCase none = c;
  none.evidence.reference = none.evidence.delta = Tensor();
  CHECK_THROWS_AS(judge(none), UsageError);
  none.evidence.oracle = tensor_of(DType::f64, {16, 32}, std::vector<double>(512, 1));
  CHECK_THROWS_AS(judge(none), UsageError);
  OutputCase axes = c;
  axes.evidence.axes = {"token"};
  CHECK_THROWS_AS(judge(axes), BadInput);
  OutputCase shapes = c;
  shapes.evidence.delta = tensor_of(DType::f32, {32, 16}, std::vector<double>(512, 0));
  CHECK_THROWS_AS(judge(shapes), UsageError);
}

}  // namespace plumb::harness
