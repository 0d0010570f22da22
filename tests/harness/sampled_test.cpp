// Outputs of which the recording has chosen rows and a sketch: a fault anywhere is seen, correct
// noise is not.
#include "harness/recording/sampled.h"

#include <algorithm>
#include <functional>

#include "tests/harness/judge_support.h"

namespace plumb::harness::testing {
namespace {

constexpr int64_t kTokens = 130, kColumns = 96;
const std::vector<int64_t> kChosen = {0, 63, 64, 127, 129};
constexpr size_t kUnchosen = 100;
using Values = std::vector<double>;

Values chosen_rows(const Values& all) {
  Values out;
  for (const int64_t token : kChosen) {
    const auto begin = all.begin() + token * kColumns;
    out.insert(out.end(), begin, begin + kColumns);
  }
  return out;
}

// The case that a whole output y gives, its reference and oracle being r and o.
OutputCase sampled_case(DType dtype, const Values& y, const Values& r, const Values& o) {
  const Made like{
      {1, static_cast<int64_t>(kChosen.size()), kColumns}, {"batch", "token", "channel"}, dtype};
  OutputCase out = case_of(like, chosen_rows(y), chosen_rows(r), chosen_rows(o));
  RowSample sample;
  sample.tokens = kChosen;
  sample.of = kTokens;
  sample.y = sketch_rows(y, kTokens, kColumns);
  sample.reference = sketch_rows(r, kTokens, kColumns);
  sample.oracle = sketch_rows(o, kTokens, kColumns);
  for (int64_t row = 0; row < kTokens; ++row) {
    double squares = 0;
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto at = static_cast<size_t>(row * kColumns + c);
      squares += o[at] * o[at];
      if (!std::isfinite(y[at]) && sample.not_finite++ == 0) sample.first_bad_row = row;
    }
    sample.rms.push_back(std::sqrt(squares / kColumns));
  }
  out.evidence.sample = std::move(sample);
  return out;
}

Values oracle(uint64_t seed) {
  Random random(seed);
  Values out = random.normals(kTokens * kColumns);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] *= std::ldexp(1.0, static_cast<int>(i / kColumns % 7) - 3);  // rows of different size
  }
  return out;
}

// What another correct order of summation makes of o: float32 noise before the rounding.
Values computed(DType dtype, const Values& o, uint64_t seed) {
  Random random(seed);
  Values out = o;
  const double noise = 2 * unit_roundoff(DType::f32);
  for (double& x : out) x = round_to(dtype, x * (1 + noise * random.normal()));
  return out;
}

OutputVerdict verdict_with(const std::function<void(Values&)>& fault, DType dtype = DType::bf16) {
  const Values o = oracle(3), r = computed(dtype, o, 4);
  Values y = computed(dtype, o, 5);
  fault(y);
  return judge(sampled_case(dtype, y, r, o));
}

double& element(Values& y, size_t token, size_t column) { return y[token * kColumns + column]; }

}  // namespace

TEST_CASE("sampled: the sketch is products with signs from a hash") {
  Values unit(kColumns, 0);
  unit[5] = 3;
  const Values sketch = sketch_rows(unit, 1, kColumns);
  for (const double v : sketch) CHECK(std::fabs(v) == 3);
  Random random(9);
  double estimate = 0, size = 0;
  for (int row = 0; row < 400; ++row) {
    const Values x = random.normals(kColumns);
    for (const double v : x) size += v * v;
    for (const double v : sketch_rows(x, 1, kColumns)) estimate += v * v / kSketchWidth;
  }
  CHECK(estimate == Approx(size).epsilon(0.1));
}

TEST_CASE("sampled: correct noise passes, in every dtype") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    double worst = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const Values o = oracle(1000 + seed);
      const OutputVerdict v = judge(
          sampled_case(dtype, computed(dtype, o, 2 * seed), computed(dtype, o, 2 * seed + 1), o));
      INFO(name_of(dtype) << " " << seed << " " << v.reason);
      CHECK(v.status == Status::pass);
      const Gate& sketch = gate(v, "sketch");
      worst = std::max(worst, sketch.statistic / sketch.limit);
    }
    CHECK(worst > 0.2);  // the gate has something to say
  }
}

TEST_CASE("sampled: a fault in a row that is not stored is seen by the sketch alone") {
  const OutputVerdict v = verdict_with([](Values& y) {
    for (size_t c = 64; c < 96; ++c) element(y, kUnchosen, c) *= 1.05;
  });
  CHECK(v.status == Status::fail);
  for (const Gate& g : v.gates) {
    INFO(g.name);
    CHECK(g.passed == (g.name != "sketch"));
  }
  CHECK(gate(v, "sketch").where == "token 100");
  CHECK(v.where->region == "token 100");
  CHECK(v.reason.find("sketch error") == 0);
  CHECK(v.reason.find("where: token 100") != std::string::npos);
}

TEST_CASE("sampled: what is a little high in all rows that are not stored is seen over them") {
  const OutputVerdict v = verdict_with([](Values& y) {
    for (size_t token = 0; token < kTokens; ++token) {
      if (std::find(kChosen.begin(), kChosen.end(), token) != kChosen.end()) continue;
      for (size_t c = 0; c < kColumns; ++c) element(y, token, c) *= 1.002;
    }
  });
  CHECK(v.status == Status::fail);
  for (const Gate& g : v.gates) {
    INFO(g.name);
    CHECK(g.passed == (g.name != "sketch gain"));
  }
  CHECK(v.reason.find("sketch gain 0.0") == 0);
}

TEST_CASE("sampled: several such rows are named together") {
  const OutputVerdict v = verdict_with([](Values& y) {
    for (size_t token = 65; token < kTokens; ++token) {
      if (token == 127 || token == 129) continue;
      for (size_t c = 0; c < 96; ++c) element(y, token, c) *= 1.1;
    }
  });
  CHECK(v.where->region == "token 65..128");
}

TEST_CASE("sampled: a fault in a stored row is seen by the gates and named by its token") {
  const OutputVerdict v = verdict_with([](Values& y) {
    for (size_t c = 64; c < 96; ++c) element(y, 64, c) *= 1.5;
  });
  CHECK(v.status == Status::fail);
  CHECK(failed(v, "token"));
  CHECK(failed(v, "tile"));
  CHECK(gate(v, "tile").where == "token 64, channel 64..95");
  CHECK(gate(v, "element").where.find("token 64, channel ") == 0);
  CHECK(v.where->region == "token 64, channel 64..95 (last 32)");
}

TEST_CASE("sampled: the last stored rows are named as an edge") {
  const OutputVerdict v = verdict_with([](Values& y) {
    for (size_t i = 64 * kColumns; i < y.size(); ++i) y[i] *= 1.5;
  });
  CHECK(v.where->region.rfind("token >= 64", 0) == 0);
}

TEST_CASE("sampled: a value that is not finite fails wherever it is") {
  for (const double value : {kNan, kInf}) {
    const OutputVerdict v = verdict_with([&](Values& y) { element(y, kUnchosen, 7) = value; });
    CHECK(v.status == Status::fail);
    CHECK(failed(v, "rows finite"));
    CHECK(gate(v, "rows finite").where == "token 100");
    CHECK(failed(v, "sketch"));
    CHECK(v.reason ==
          "1 elements are not finite, the first at token 100; worst token 100; where: "
          "token 100");
  }
}

TEST_CASE("sampled: an exact output must have the reference's sketch") {
  const Values o = rounded(DType::bf16, oracle(3));
  Values y = o;
  CHECK([&] {
    OutputCase c = sampled_case(DType::bf16, y, o, o);
    c.rule.exact = true;
    return judge(c).status;
  }() == Status::pass);
  element(y, kUnchosen, 7) *= 1 + 0x1p-7;  // one ulp
  OutputCase c = sampled_case(DType::bf16, y, o, o);
  c.rule.exact = true;
  const OutputVerdict v = judge(c);
  CHECK(v.status == Status::fail);
  CHECK_FALSE(failed(v, "bits"));
  CHECK(gate(v, "sketch").where == "token 100");
}

TEST_CASE("sampled: a float64 run is held to the oracle's sketch") {
  const Values o = oracle(3), r = computed(DType::bf16, o, 4);
  Values y = o;
  const auto run = [&] {
    OutputCase c = sampled_case(DType::bf16, y, r, o);
    c.evidence.y = tensor_of(DType::f64, c.evidence.y.shape(), chosen_rows(y));
    return judge(c);
  };
  CHECK(run().status == Status::pass);
  element(y, kUnchosen, 7) += 1e-8;
  CHECK(failed(run(), "sketch"));
}

TEST_CASE("sampled: without a comparable sketch all rows must be finite, no more") {
  const Values o = oracle(3), r = computed(DType::f16, o, 4);
  Values y = r;
  element(y, kUnchosen, 7) += 100;
  OutputCase c = sampled_case(DType::f16, y, r, o);
  c.evidence.sample->comparable = false;
  CHECK(judge(c).status == Status::pass);
  CHECK(words_of(*c.evidence.sample) == "5 of 130 rows, all of them finite");
}

TEST_CASE("sampled: rows are taken along the axis that is named") {
  const Tensor t = tensor_of(DType::f32, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(values_of(take_rows(t, 1, {0, 2})) == Values{0, 1, 4, 5, 6, 7, 10, 11});
  CHECK(values_of(take_rows(t, 2, {1})) == Values{1, 3, 5, 7, 9, 11});
}

}  // namespace plumb::harness::testing
