// Figures made in passes over rows are those of their definitions, element by element.
#include <algorithm>

#include "harness/judge/details.h"
#include "harness/judge/distribution.h"
#include "harness/judge/limits.h"
#include "harness/judge/statistics.h"
#include "tests/catch.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness {
namespace {

struct Output {
  Layout layout;
  std::vector<double> y, o;
  std::vector<uint8_t> valid, skipped;
  DType storage = DType::bf16;

  size_t row(size_t i) const { return i / static_cast<size_t>(layout.columns); }
  bool usable(size_t i) const { return valid[i] && std::isfinite(o[i]); }
  bool counts(size_t i) const { return usable(i) && !skipped[i]; }
};

// Rows with holes: invalid elements, unknown ones of the oracle, and one that both sides overflow.
Output with_holes(uint64_t seed) {
  testing::Random random(seed);
  Output out;
  out.layout = layout_of({1, 21, 2, 300}, {"batch", "token", "head", "head_dim"});
  out.o = random.normals(out.layout.size());
  out.y = out.o;
  out.valid.assign(out.o.size(), 1);
  out.skipped.assign(out.o.size(), 0);
  for (size_t i = 0; i < out.o.size(); ++i) {
    out.y[i] = round_to(out.storage, out.o[i] * (1 + 0.004 * random.normal()));
    if (out.row(i) % 3 == 0) continue;  // whole
    if (random.uniform() < 0.2) out.valid[i] = 0, out.o[i] *= 1000;
    if (random.uniform() < 0.01) out.o[i] = kNan;
    if (random.uniform() < 0.01) out.y[i] = kInf, out.skipped[i] = 1;
  }
  return out;
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

std::vector<double> row_scales(const Output& out) {
  const auto rows = static_cast<size_t>(out.layout.rows);
  std::vector<double> scales(rows), all;
  for (size_t row = 0; row < rows; ++row) {
    std::vector<double> sizes;
    for (size_t i = 0; i < out.o.size(); ++i) {
      if (out.row(i) == row && out.usable(i)) sizes.push_back(std::fabs(out.o[i]));
    }
    scales[row] = middle(sizes) / 0.6745;
    if (!sizes.empty()) all.push_back(scales[row]);
  }
  const double smallest = kLimits.smallest_scale * middle(all);
  for (double& scale : scales) scale = std::max(scale, smallest);
  return scales;
}

double value_of(const Details& d, std::string_view name) {
  const auto at = std::find_if(d.values.begin(), d.values.end(),
                               [&](const NamedValue& v) { return v.name == name; });
  REQUIRE(at != d.values.end());
  return at->value;
}

// 1 - the cosine of values less their means, or as they are.
double one_minus_cosine(const Output& out, bool centred) {
  long double n = 0, mean_y = 0, mean_o = 0, yy = 0, oo = 0, yo = 0;
  for (size_t i = 0; i < out.o.size(); ++i) {
    if (!out.counts(i)) continue;
    n += 1;
    mean_y += out.y[i];
    mean_o += out.o[i];
  }
  mean_y = centred ? mean_y / n : 0;
  mean_o = centred ? mean_o / n : 0;
  for (size_t i = 0; i < out.o.size(); ++i) {
    if (!out.counts(i)) continue;
    const long double y = out.y[i] - mean_y, o = out.o[i] - mean_o;
    yy += y * y;
    oo += o * o;
    yo += y * o;
  }
  return static_cast<double>(1 - yo / std::sqrt(yy * oo));
}

void check_figures(const Output& out) {
  const ReferenceScales scales = reference_scales(out.layout, out.o, out.valid, out.storage);
  FamilyErrors errors;
  const Statistics s = statistics(out.y, scales, out.skipped, &errors);
  const Details d = details(out.y, scales, out.skipped, errors);
  const std::vector<double> row_scale = row_scales(out);
  const double u = unit_roundoff(out.storage);
  double energy = 0, along = 0, o2 = 0, element = 0, max_abs = 0, max_rel = 0, bias = 0, inside = 0;
  int64_t n = 0;
  std::vector<int64_t> octaves(kOctaves, 0), ulps(kUlpBins, 0);
  for (size_t i = 0; i < out.o.size(); ++i) {
    if (out.usable(i)) o2 += out.o[i] * out.o[i];
    if (!out.counts(i)) continue;
    const double o = out.o[i], error = out.y[i] - o;
    const double scale = std::max(std::fabs(o), row_scale[out.row(i)]);
    ++n;
    energy += error * error;
    along += error * o;
    element = std::max(element, std::fabs(error) / scale);
    max_abs = std::max(max_abs, std::fabs(error));
    max_rel = std::max(max_rel, std::fabs(error) / std::fabs(o));
    bias += error / scale / u;
    inside += std::fabs(error) <= 1e-5 + 1.6e-2 * std::fabs(o);
    ++octaves[static_cast<size_t>(octave_of(std::fabs(error) / scale / u))];
    ++ulps[static_cast<size_t>(
        ulp_bin(ulp_distance(out.storage, out.y[i], round_to(out.storage, o))))];
  }
  for (size_t row = 0; row < row_scale.size(); ++row) {
    CHECK(scales.row_scale[row] == Approx(row_scale[row]).epsilon(1e-14));
  }
  CHECK(s.tensor == Approx(std::sqrt(energy / o2)).epsilon(1e-12));
  CHECK(s.gain == Approx(along / o2).epsilon(1e-10));
  CHECK(s.element == Approx(element).epsilon(1e-14));
  CHECK(tensor_error(out.y, scales, out.skipped) == Approx(s.tensor).epsilon(1e-14));
  CHECK(value_of(d, "max_abs") == max_abs);
  CHECK(value_of(d, "max_rel") == max_rel);
  CHECK(value_of(d, "sign_bias") == Approx(bias / static_cast<double>(n)).epsilon(1e-10));
  CHECK(value_of(d, "inside_torch_defaults") == inside / static_cast<double>(n));
  CHECK(value_of(d, "one_minus_cosine") == Approx(one_minus_cosine(out, false)).epsilon(1e-9));
  CHECK(value_of(d, "one_minus_pcc") == Approx(one_minus_cosine(out, true)).epsilon(1e-9));
  CHECK(d.octaves == octaves);
  CHECK(d.ulps == ulps);
}

}  // namespace

TEST_CASE("figures are those of their definitions") {
  const uint64_t seed = GENERATE(1, 2, 3);
  Output out = with_holes(seed);
  SECTION("of rounded values") { check_figures(out); }
  SECTION("of values that are far off") {
    for (double& y : out.y) y = -3 * y + 0.25;
    check_figures(out);
  }
  SECTION("of values that are far too small") {
    for (size_t i = 0; i < out.y.size(); ++i) {
      out.y[i] = round_to(out.storage, out.y[i] * (i % 2 ? 1e-6 : 3e-6));
    }
    check_figures(out);
  }
}

TEST_CASE("the largest error is the infinite one, wherever it is") {
  Output out = with_holes(4);
  size_t at = out.y.size() - 500;  // all else there is right
  for (size_t i = at; i < out.y.size(); ++i) out.y[i] = out.skipped[i] ? kInf : out.o[i];
  while (!out.counts(at)) ++at;
  if (GENERATE(false, true)) {  // of zeros
    out.o.assign(out.o.size(), 0);
    out.y = out.o;
  }
  out.y[at] = GENERATE(kInf, kNan);
  const ReferenceScales scales = reference_scales(out.layout, out.o, out.valid, out.storage);
  FamilyErrors errors;
  const Statistics s = statistics(out.y, scales, out.skipped, &errors);
  const Details d = details(out.y, scales, out.skipped, errors);
  CHECK(s.element_at == static_cast<int64_t>(at));
  CHECK_FALSE(s.element <= 1e300);
  for (const size_t k : {0, 1}) {  // max_abs, max_rel
    CHECK(d.values[k].at == static_cast<int64_t>(at));
    CHECK_FALSE(d.values[k].value <= 1e300);
  }
  CHECK(std::isnan(value_of(d, "one_minus_cosine")));
  CHECK(std::isnan(value_of(d, "one_minus_pcc")));
}

}  // namespace plumb::harness
