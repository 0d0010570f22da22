#include "harness/judge/verdict.h"

#include "kernels/core/error.h"
#include "kernels/core/shared_loop.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

using testing::case_of;
using testing::changed;
using testing::failed;
using testing::gate;
using testing::Made;
using testing::made;
using testing::Random;
using testing::rounded;
using testing::tensor_of;

std::string words(const Statistics& s) {
  std::string out = text(s.tensor, ' ', s.element, ' ', s.element_at, ' ', s.gain);
  for (const GroupStatistic& f : s.families) {
    out += text('\n', f.family, ' ', f.value, ' ', f.normalised, ' ', f.worst);
  }
  return out;
}

// Everything that is said of an output.
std::string all_of(const OutputVerdict& v) {
  std::string out = text(name_of(v.status), ' ', v.reason, ' ', v.recorded_error, '\n');
  for (const Gate& g : v.gates) out += text(g.name, ' ', g.statistic, ' ', g.limit, g.where, '\n');
  out += words(v.statistics) + words(v.reference);
  for (const NamedValue& it : v.details.values) out += text('\n', it.name, it.value, ' ', it.at);
  for (const int64_t count : v.details.octaves) out += text(' ', count);
  for (const int64_t count : v.details.ulps) out += text(' ', count);
  for (const WorstGroup& it : v.details.worst_groups) out += text('\n', it.name, ' ', it.value);
  const ClassCheck& c = v.classes;
  for (const ClassCounts& counts : {c.y, c.reference, c.rounded}) {
    out += text('\n', counts.finite, ' ', counts.plus_infinity, ' ', counts.nan);
  }
  out += text(c.wrong, ' ', c.first_wrong, ' ', c.range_hazards, ' ', c.padded_wrong);
  if (v.conformance) out += text('\n', v.conformance->differ, ' ', v.conformance->first);
  return out;
}

}  // namespace

TEST_CASE("right outputs pass in every dtype", "[verdict]") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const uint64_t seed = GENERATE(range(1, 21));
  Random random(seed);
  const int64_t rows = 1 + static_cast<int64_t>(random.bits() % 40);
  const int64_t columns = 2 + static_cast<int64_t>(random.bits() % 70);
  const int64_t n = rows * columns;
  const std::vector<double> o = random.normals(n, std::exp2(random.normal() * 4));
  std::vector<double> r = o;  // an imperfect reference
  for (double& x : r) x = round_to(dtype, x * (1 + unit_roundoff(dtype) * random.normal()));
  const Made like = made(dtype, {rows, columns});
  const auto status = [](const OutputCase& c) {
    const OutputVerdict v = judge(c);
    INFO(v.reason);
    CHECK(v.status == Status::pass);
    CHECK(v.reason.empty());
    return v;
  };
  const OutputVerdict same = status(case_of(like, r, r, o));
  CHECK(same.statistics.tensor == same.reference.tensor);
  CHECK(same.recorded_error == same.reference.tensor);
  status(case_of(like, rounded(dtype, o), r, o));
}

TEST_CASE("a verdict is the same on any number of threads", "[verdict]") {
  const Shape shape{2, 131, 4, 1024};
  const int64_t n = shape.numel();
  Random random(11);
  std::vector<double> o = random.normals(n);
  std::vector<double> r = rounded(DType::bf16, o);
  std::vector<double> y = r;
  for (size_t i = 0; i < y.size(); i += 97) y[i] = round_to(DType::bf16, y[i] * 1.01);
  const std::string damage = GENERATE("none", "row", "class", "overflow");
  const size_t at = 3 * static_cast<size_t>(n) / 4;
  if (damage == "row") {
    for (size_t i = 0; i < 4096; ++i) y[at / 4096 * 4096 + i] *= 2;
  } else if (damage == "class") {
    y[at] = y[at + 7] = std::numeric_limits<double>::quiet_NaN();
  } else if (damage == "overflow") {
    y[at] = r[at] = std::numeric_limits<double>::infinity();
  }
  const Made like{shape, {"batch", "token", "head", "head_dim"}, DType::bf16};
  OutputCase output = case_of(like, y, r, o);
  output.evidence.model = tensor_of(DType::bf16, shape, r);
  const std::string alone = all_of(judge(output));
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    const LoopThreads lent(&pool);
    CHECK(all_of(judge(output)) == alone);
  }
}

TEST_CASE("a verdict is free of units", "[verdict]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Random random(3);
  const std::vector<double> o = random.normals(512), r = rounded(dtype, o);
  for (const double error : {0.3, 30.0}) {
    std::vector<double> y = o;
    for (double& x : y)
      x = round_to(dtype, x * (1 + error * unit_roundoff(dtype) * random.normal()));
    const OutputVerdict plain = judge(case_of(made(dtype), y, r, o));
    CHECK((plain.status == Status::pass) == (error < 1));
    std::vector<double> y2 = y, r2 = r, o2 = o;
    for (auto* v : {&y2, &r2, &o2}) {
      for (double& x : *v) x *= 0x1p-20;
    }
    const OutputVerdict scaled = judge(case_of(made(dtype), y2, r2, o2));
    CHECK(scaled.status == plain.status);
    for (size_t i = 0; i < plain.gates.size(); ++i) {
      CHECK(scaled.gates[i].statistic == plain.gates[i].statistic);
      CHECK(scaled.gates[i].limit == plain.gates[i].limit);
    }
  }
}

TEST_CASE("each gate sees what it is there for", "[verdict]") {
  const DType dtype = DType::bf16;
  SECTION("gain: a coherent 0.1 %") {
    Random random(4);
    std::vector<double> o = random.normals(64 * 128);
    const std::vector<double> r = rounded(dtype, o);
    std::vector<double> y = o;
    for (double& x : y) x = round_to(dtype, x * 1.001);
    const OutputVerdict v = judge(case_of(made(dtype, {64, 128}), y, r, o));
    CHECK(v.status == Status::fail);
    CHECK(failed(v, "gain"));
    CHECK_FALSE(failed(v, "tensor"));
  }
  SECTION("element: one value") {
    const OutputVerdict v = judge(changed(dtype, [](auto& y) { y[100] *= 1.1; }));
    CHECK(v.status == Status::fail);
    CHECK(failed(v, "element"));
    CHECK(gate(v, "element").where == "token 3, channel 4");
    CHECK_FALSE(failed(v, "tensor"));
    CHECK(v.where->region == "token 3, channel 4");
  }
  SECTION("token: one row of many") {
    Random random(5);
    const std::vector<double> o = random.normals(400 * 64), r = rounded(dtype, o);
    std::vector<double> y = r;
    for (size_t i = 7 * 64; i < 8 * 64; ++i) y[i] = o[i] + 0.0065 * (random.bits() % 2 ? 1 : -1);
    const OutputVerdict v = judge(case_of(made(dtype, {400, 64}), rounded(DType::bf16, y), r, o));
    CHECK(failed(v, "token"));
    CHECK_FALSE(failed(v, "tensor"));
    CHECK_FALSE(failed(v, "element"));
  }
  SECTION("channel: one column of many") {
    Random random(6);
    const std::vector<double> o = random.normals(64 * 400), r = rounded(dtype, o);
    std::vector<double> y = r;
    for (size_t t = 0; t < 64; ++t)
      y[t * 400 + 9] = o[t * 400 + 9] + 0.0065 * (random.bits() % 2 ? 1 : -1);
    const OutputVerdict v = judge(case_of(made(dtype, {64, 400}), rounded(DType::bf16, y), r, o));
    CHECK(failed(v, "channel"));
    CHECK(gate(v, "channel").where == "channel 9");
    CHECK_FALSE(failed(v, "tensor"));
  }
}

TEST_CASE("the verdict follows the gates", "[verdict]") {
  // An error of known relative size in every element, alternating in sign: only the tensor, group
  // and element gates see it. The verdict turns exactly where the first of them does.
  Random random(8);
  const std::vector<double> o = rounded(DType::f32, random.normals(512));
  const auto run = [&](double size) {
    std::vector<double> y = o;
    for (size_t i = 0; i < y.size(); ++i) y[i] = o[i] * (1 + (i % 2 ? size : -size));
    OutputCase c = case_of(made(DType::f32), o, o, o);
    c.evidence.y = tensor_of(DType::f32, {16, 32}, y);
    return judge(c);
  };
  bool seen_pass = false, seen_fail = false;
  for (double size = 0x1p-24; size < 0x1p-16; size *= 1.1) {
    const OutputVerdict v = run(size);
    bool all = true;
    for (const Gate& g : v.gates) {
      CHECK(g.passed == (g.statistic <= g.limit));
      all = all && g.statistic <= g.limit;
    }
    CHECK((v.status == Status::pass) == all);
    seen_pass = seen_pass || all;
    seen_fail = seen_fail || !all;
  }
  CHECK(seen_pass);
  CHECK(seen_fail);
}

TEST_CASE("NaN anywhere fails", "[verdict]") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const size_t at = GENERATE(0u, 77u, 511u);
  const OutputVerdict v = judge(changed(dtype, [&](auto& y) { y[at] = kNan; }));
  CHECK(v.status == Status::fail);
  CHECK(failed(v, "classes"));
  CHECK(failed(v, "tensor"));
  CHECK(failed(v, "gain"));
  CHECK(v.classes.y.nan == 1);
  CHECK(v.reason.find("1 elements of the wrong class, the first at") == 0);
  CHECK(v.where->region.find("token ") == 0);
}

TEST_CASE("a fused contract is held to its model", "[verdict]") {
  Random random(13);
  const std::vector<double> o = random.normals(512), m = rounded(DType::bf16, o);
  std::vector<double> r = o, y = o;
  for (double& x : r)
    x = round_to(DType::bf16, x * (1 + 0.02 * random.normal()));  // eager is coarse
  for (double& x : y) x = round_to(DType::bf16, x * (1 + 0.015 * random.normal()));
  OutputCase c = case_of(made(DType::bf16), y, r, o);
  CHECK(judge(c).status == Status::pass);
  c.evidence.model = tensor_of(DType::bf16, {16, 32}, m);
  c.rule.conformance = false;
  CHECK(judge(c).status == Status::pass);
  c.rule.held_to_model = true;
  CHECK(judge(c).status == Status::fail);
  CHECK(judge(c).recorded_error == Approx(0.02).epsilon(0.2));
  CHECK(judge(c).reference.tensor < 0.003);
}

TEST_CASE("a run in another dtype has its oracle and model, and no reference", "[verdict]") {
  Random random(14);
  const std::vector<double> o = random.normals(512), m = rounded(DType::f16, o);
  OutputCase c;
  c.evidence.name = "out";
  c.evidence.axes = {"token", "channel"};
  c.evidence.oracle = tensor_of(DType::f64, {16, 32}, o);
  c.evidence.model = tensor_of(DType::f16, {16, 32}, m);
  c.evidence.y = tensor_of(DType::f16, {16, 32}, m);
  c.rule.contract.storage = DType::f16;
  CHECK(judge(c).status == Status::pass);
  std::vector<double> y = m;
  y[7] += 0.5;
  c.evidence.y = tensor_of(DType::f16, {16, 32}, y);
  CHECK(judge(c).status == Status::fail);
}

TEST_CASE("a checkpoint is as bad as its worst output", "[verdict]") {
  const auto output = [](std::string name, Status status, std::string reason) {
    OutputVerdict v;
    v.name = std::move(name);
    v.status = status;
    v.reason = std::move(reason);
    return v;
  };
  const auto pass = output("q", Status::pass, ""), blind = output("s", Status::blind, "zero");
  const auto fail = output("k", Status::fail, "tensor"),
             bad = output("v", Status::bad_input, "nan");
  CHECK(combine({pass, blind}).status == Status::pass);
  CHECK(combine({pass, blind}).reason == "");
  CHECK(combine({blind, blind}).status == Status::blind);
  CHECK(combine({blind}).reason == "zero");
  CHECK(combine({pass, blind, fail}).status == Status::fail);
  CHECK(combine({pass, blind, fail}).reason == "k: tensor");
  CHECK(combine({fail, bad}).reason == "v: nan");
  CHECK(combine({bad, fail}).reason == "v: nan");
  CHECK(combine({fail}).reason == "tensor");
  CHECK_THROWS_AS(combine({}), UsageError);
}

TEST_CASE("statuses, exit codes and severity", "[verdict]") {
  const std::vector<std::pair<Status, int>> by_severity = {
      {Status::internal_error, 7}, {Status::device_error, 5}, {Status::timeout, 6},
      {Status::bad_input, 3},      {Status::fail, 1},         {Status::nondeterministic, 9},
      {Status::unsupported, 4},    {Status::blind, 8},        {Status::pass, 0}};
  for (size_t i = 0; i < by_severity.size(); ++i) {
    CHECK(exit_code(by_severity[i].first) == by_severity[i].second);
    CHECK(status_from_name(name_of(by_severity[i].first)) == by_severity[i].first);
    for (size_t j = i; j < by_severity.size(); ++j) {
      CHECK(worse(by_severity[i].first, by_severity[j].first) == by_severity[i].first);
      CHECK(worse(by_severity[j].first, by_severity[i].first) == by_severity[i].first);
    }
  }
  CHECK_FALSE(status_from_name("passed").has_value());
  const Status p = Status::pass, b = Status::blind, u = Status::unsupported;
  CHECK(run_exit_code({}, false) == 2);
  CHECK(run_exit_code({p}, true) == 0);
  CHECK(run_exit_code({p, b, u}, false) == 0);
  CHECK(run_exit_code({p, b, u}, true) == 4);
  CHECK(run_exit_code({b, b}, false) == 8);
  CHECK(run_exit_code({u, b}, false) == 4);
  CHECK(run_exit_code({p, Status::fail, b}, false) == 1);
  CHECK(run_exit_code({p, Status::nondeterministic}, false) == 9);
  CHECK(run_exit_code({Status::timeout, Status::device_error, Status::bad_input}, false) == 5);
}

}  // namespace plumb::harness
