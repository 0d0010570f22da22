#include "harness/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "harness/layout.h"
#include "harness/limits.h"

namespace plumb {
namespace {

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::string percent(const Conformance& c) {
  char buffer[32];
  std::snprintf(
      buffer, sizeof buffer, "%.2g %%",
      100.0 * static_cast<double>(c.differ) / static_cast<double>(std::max<int64_t>(c.n, 1)));
  return buffer;
}

// What float32 arithmetic on values of ordinary size may be off by. An element that is tiny because
// its terms cancel (GeLU's tail in the textbook form) has a last bit that no contract determines.
double noise(const std::vector<double>& model, const std::vector<uint8_t>& valid) {
  std::vector<double> sizes;
  for (size_t i = 0; i < model.size(); ++i) {
    if (valid[i] && std::isfinite(model[i])) sizes.push_back(std::fabs(model[i]));
  }
  if (sizes.empty()) return 0;
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  return kLimits.conformance_noise * unit_roundoff(DType::f32) * *middle;
}

struct Judged {
  std::string name;
  Conformance result;
};

// "a (0.02 % differ), b (0.03 %)" of those that passed, or of the others.
std::string list(const std::vector<Judged>& all, bool passed, bool explain) {
  std::string out;
  for (const Judged& j : all) {
    if (j.result.passed != passed) continue;
    out += (out.empty() ? "" : ", ") + j.name + " (" + percent(j.result);
    out += explain && out.find('%') == out.rfind('%') ? " differ)" : ")";
  }
  return out;
}

}  // namespace

bool conformance_applies(DType storage, int64_t n) {
  return (storage == DType::f16 || storage == DType::bf16) && n >= kLimits.conformance_least;
}

Conformance conformance(const std::vector<double>& y, const std::vector<double>& model,
                        const std::vector<uint8_t>& valid, double accumulation, double u_store,
                        double cascade, int64_t w) {
  Conformance out;
  std::optional<double> negligible;  // worked out when the first element differs
  for (size_t i = 0; i < y.size(); ++i) {
    if (!valid[i]) continue;
    ++out.n;
    if (same_value(y[i], model[i])) continue;
    if (!negligible) negligible = noise(model, valid);
    const double ulp = 2 * u_store * std::fabs(model[i]);
    const bool undetermined = ulp <= kLimits.conformance_undetermined * *negligible;
    if (undetermined && std::fabs(y[i] - model[i]) <= ulp + *negligible) continue;
    if (out.differ++ == 0) out.first = static_cast<int64_t>(i);
  }
  const double growth = kLimits.conformance_growth;
  out.q = kLimits.conformance_base + growth * accumulation / u_store +
          kLimits.conformance_cascade * std::sqrt(growth * cascade / u_store);
  const double expected = static_cast<double>(out.n) * out.q;
  const double limit = expected + kLimits.conformance_sigmas * std::sqrt(expected);
  out.limit = std::max(kLimits.conformance_count, limit) + static_cast<double>(w);
  out.passed = !!(static_cast<double>(out.differ) <= out.limit);
  return out;
}

std::string classify(const OutputCase& output, const std::vector<Candidate>& candidates) {
  if (candidates.empty()) return {};
  const Layout layout = layout_of(output.y.shape(), output.axes);
  const std::vector<double> y = to_matrix(output.y, layout);
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  const Floors floor = floors(output.contract, output.stages, output.max_abs_score);
  std::vector<Judged> all;
  for (const Candidate& candidate : candidates) {
    all.push_back({candidate.name,
                   conformance(y, to_matrix(candidate.model, layout), valid, floor.accumulation,
                               unit_roundoff(output.contract.storage),
                               accumulation_floor(output.cascade_stages), output.cascade_outputs)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Judged& a, const Judged& b) {
    return a.result.differ < b.result.differ;
  });
  const std::string like = list(all, true, true);
  const std::string unlike = list(all, false, like.empty());
  if (like.empty()) return "rounds like none: " + unlike;
  return "rounds like: " + like + (unlike.empty() ? "" : ", not like: " + unlike);
}

}  // namespace plumb
