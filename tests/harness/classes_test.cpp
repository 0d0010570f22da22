#include "harness/judge/classes.h"

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

TEST_CASE("classes of y, reference and round(o)", "[classes]") {
  struct Rule {
    double y, r, o;
    bool allowed, hazard;
  };
  const auto rule = GENERATE(values<Rule>({
      {1, 1, 1, true, false},
      {kNan, 1, 1, false, false},
      {kInf, 1, 1, false, false},
      {kNan, 1, kNan, false, false},
      {kNan, kInf, kNan, false, false},
      {kNan, kNan, kNan, true, false},
      {1, kNan, kNan, false, false},
      {1, kNan, 1, true, true},  // the reference lost it to overflow
      {kInf, kInf, kInf, true, false},
      {-kInf, kInf, kInf, false, false},
      {kNan, kInf, kInf, false, false},
      {1, kInf, kInf, false, false},  // finite where infinity is right: only this rule sees it
      {kInf, kInf, 60000, true, false},
      {60000, kInf, 60000, true, true},
      {-kInf, kInf, 60000, false, false},
      {kInf, 65504, 70000, true, true},  // round(o) is infinite
      {65504, 65504, 70000, true, false},
      {60000, kInf, kNan, false, false},  // the oracle's value is unknown
  }));
  const ClassCheck c = check_classes({rule.y}, {rule.r}, {rule.o}, {1}, DType::f16);
  CAPTURE(rule.y, rule.r, rule.o);
  CHECK(c.wrong == (rule.allowed ? 0 : 1));
  CHECK(c.range_hazards == (rule.hazard ? 1 : 0));
  CHECK(c.first_wrong == (rule.allowed ? -1 : 0));
  const bool unknown = std::isfinite(rule.y) && std::isnan(rule.o);
  CHECK(c.unknown_oracle == (unknown ? 1 : 0));
}

TEST_CASE("a wrong class fails even where no number shows it", "[classes]") {
  Random random(9);
  std::vector<double> o = random.normals(512);
  o[40] = kInf;
  std::vector<double> r = rounded(DType::f16, o), y = r;
  OutputCase c = case_of(made(DType::f16), y, r, o);
  c.evidence.delta = Tensor();
  c.evidence.oracle = tensor_of(DType::f64, {16, 32}, o);
  CHECK(judge(c).status == Status::pass);
  y[40] = 3;
  c.evidence.y = tensor_of(DType::f16, {16, 32}, y);
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::fail);
  for (const Gate& g : v.gates) CHECK(g.passed == (g.name != "classes"));
  CHECK(v.reason.find(
            "1 elements of the wrong class, the first at token 1, channel 8: 3, expected inf") ==
        0);
  CHECK(v.where->region == "token 1, channel 8");
}

TEST_CASE("where the reference overflowed, y may be finite and must then be right", "[classes]") {
  Random random(10);
  std::vector<double> o = random.normals(512, 10000);
  o[40] = 60000;
  std::vector<double> r = rounded(DType::f16, o), y = r;
  r[40] = kInf;
  OutputCase c = case_of(made(DType::f16), y, r, o);
  CHECK(judge(c).status == Status::fail);  // o - r is an infinity: o is not known there
  CHECK(judge(c).reason.find("judge them with a computed oracle") != std::string::npos);
  const Tensor unknown = c.evidence.delta;
  c.evidence.oracle = tensor_of(DType::f64, {16, 32}, o);
  CHECK(judge(c).status == Status::pass);
  CHECK(judge(c).classes.range_hazards == 1);
  std::vector<double> delta = testing::values_of(unknown);
  delta[40] = 60000;  // as recordings have it
  c.evidence.delta = tensor_of(DType::f32, {16, 32}, delta);
  if (GENERATE(false, true)) c.evidence.oracle = Tensor();
  CHECK(judge(c).status == Status::pass);
  CHECK(judge(c).classes.range_hazards == 1);
  y[40] = 30000;
  c.evidence.y = tensor_of(DType::f16, {16, 32}, y);
  CHECK(judge(c).status == Status::fail);
  CHECK(std::isfinite(gate(judge(c), "tensor").limit));  // the reference's infinity loosens nothing
  y[40] = kInf;
  c.evidence.y = tensor_of(DType::f16, {16, 32}, y);
  CHECK(judge(c).status == Status::pass);
}

TEST_CASE("padded elements must only be finite", "[classes]") {
  std::vector<double> mask(16, 1);
  mask[2] = 0;
  const auto run = [&](double value) {
    OutputCase c = changed(DType::bf16, [&](auto& y) { y[2 * 32 + 5] = value; });
    c.evidence.valid = tensor_of(DType::boolean, {16}, mask);
    c.evidence.valid_axes = {"token"};
    return judge(c);
  };
  CHECK(run(1e30).status == Status::pass);
  CHECK(run(kNan).status == Status::fail);
  CHECK(failed(run(kInf), "padding"));
  CHECK(run(kInf).reason ==
        "1 padded elements are not finite, the first at token 2, channel 5; worst "
        "token 2, channel 5; where: token 2, channel 5");
  CHECK(run(1e30).classes.y.finite == 15 * 32);
}

TEST_CASE("what is not judged may be an infinity that the reference has elsewhere", "[classes]") {
  const auto wrong = [](double value) {  // which of two tied logits is masked is a choice
    const std::vector<double> reference = {1, -kInf, 1};
    return check_classes({1, -kInf, value}, reference, reference, {1, 1, 0}, DType::bf16)
        .padded_wrong;
  };
  CHECK(wrong(2) == 0);
  CHECK(wrong(-kInf) == 0);
  CHECK(wrong(kInf) == 1);
  CHECK(wrong(kNan) == 1);
}

TEST_CASE("the mask keeps errors at valid elements", "[classes]") {
  OutputCase c = changed(DType::bf16, [](auto& y) { y[5] = 9; });
  c.evidence.valid = tensor_of(DType::boolean, {16}, std::vector<double>(16, 1));
  c.evidence.valid_axes = {"token"};
  CHECK(judge(c).status == Status::fail);
}

}  // namespace plumb::harness
