#include "harness/judge/sample_gates.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/spread_limit.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

constexpr auto kWidth = static_cast<size_t>(kSketchWidth);

// All rows of the output as one column: how a row is named and an error drawn.
Layout layout_of_rows(const RowSample& sample, const Layout& chosen) {
  const int64_t entries = chosen.batch_axis < 0 ? 1 : chosen.shape[chosen.batch_axis];
  const std::string& token = chosen.axes[static_cast<size_t>(chosen.token_axis)];
  return layout_of({entries, sample.of}, {"batch", token});
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// v_g of every row: its error by the sketch, in units of the row's size.
std::vector<double> row_errors(const RowSample& sample, const std::vector<double>& of,
                               int64_t columns) {
  const double smallest = kLimits.smallest_scale * median(sample.rms);
  std::vector<double> out(sample.rms.size());
  for (size_t row = 0; row < out.size(); ++row) {
    double energy = 0;
    for (size_t j = row * kWidth; j < (row + 1) * kWidth; ++j) {
      energy += (of[j] - sample.oracle[j]) * (of[j] - sample.oracle[j]);
    }
    const double values = static_cast<double>(kSketchWidth) * static_cast<double>(columns);
    out[row] = quotient(std::sqrt(energy / values), std::max(sample.rms[row], smallest));
  }
  return out;
}

// The largest difference of a row's sketch from `expected`, as a share of what is allowed.
std::vector<double> row_shares(const RowSample& sample, const std::vector<double>& expected,
                               const SampleRule& rule, int64_t columns) {
  const double allowed = static_cast<double>(columns) * kLimits.float64_relative * rule.max_abs;
  std::vector<double> out(sample.rms.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double share = quotient(std::fabs(sample.y[i] - expected[i]), allowed);
    if (exceeds(share, out[i / kWidth])) out[i / kWidth] = share;
  }
  return out;
}

std::vector<double> row_statistics(const RowSample& sample, const SampleRule& rule,
                                   int64_t columns) {
  if (rule.kind == SampleRule::Kind::error) return row_errors(sample, sample.y, columns);
  const bool exact = rule.kind == SampleRule::Kind::reference;
  return row_shares(sample, exact ? sample.reference : sample.oracle, rule, columns);
}

size_t worst_of(const std::vector<double>& values) {
  size_t worst = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (exceeds(values[i], values[worst])) worst = i;
  }
  return worst;
}

Gate sketch_gate(const RowSample& sample, const Layout& chosen, const SampleRule& rule) {
  const Layout rows = layout_of_rows(sample, chosen);
  const std::vector<double> values = row_statistics(sample, rule, chosen.columns);
  const size_t worst = worst_of(values);
  const double statistic = values[worst];
  const std::string where = statistic == 0 ? "" : element_name(rows, static_cast<int64_t>(worst));
  if (rule.kind != SampleRule::Kind::error) {
    return make_gate("sketch", statistic, 1,
                     {{"relative", kLimits.float64_relative},
                      {"columns", static_cast<double>(chosen.columns)},
                      {"max_abs", rule.max_abs}},
                     where);
  }
  double reference = rule.token_error.value_or(0);
  if (!rule.token_error || rule.beside_reference) {
    const std::vector<double> errors = row_errors(sample, sample.reference, chosen.columns);
    reference = std::max(reference, errors[worst_of(errors)]);
  }
  const double widening = kappa(kSketchWidth, rows.rows);
  const double c = c_of(rule.storage);
  Gate out =
      ratio_gate("sketch", statistic, c, widening, rule.roundings, reference, rule.floor, where);
  widen(out, rule.spread, rule.storage);
  return out;
}

// E_T and g of all rows, by their sketches.
struct SketchSums {
  double error = 0, gain = 0;
};

SketchSums sums_of(const std::vector<double>& of, const std::vector<double>& oracle) {
  double d2 = 0, d_o = 0, o2 = 0;
  for (size_t i = 0; i < of.size(); ++i) {
    const double d = of[i] - oracle[i];
    d2 += d * d;
    d_o += d * oracle[i];
    o2 += oracle[i] * oracle[i];
  }
  return {std::sqrt(quotient(d2, o2)), quotient(d_o, o2)};
}

Gate sketch_gain_gate(const RowSample& sample, const SampleRule& rule) {
  const SketchSums y = sums_of(sample.y, sample.oracle);
  SketchSums reference = sums_of(sample.reference, sample.oracle);
  if (rule.token_error) reference = {*rule.token_error, rule.gain};
  Gate out = gain_gate("sketch gain", y.gain, reference.gain, reference.error,
                       rule.roundings * rule.floor, static_cast<int64_t>(sample.y.size()),
                       static_cast<int64_t>(sample.rms.size()), rule.storage);
  const SpreadOf* of = rule.spread ? rule.spread->find("gain") : nullptr;
  if (!of) return out;
  const double limit = spread_limit(*of, rule.storage);
  out.derivation.push_back({"spread", limit});
  out.limit = std::max(out.limit, limit);
  out.passed = !!(out.statistic <= out.limit);
  return out;
}

}  // namespace

std::vector<Gate> sample_gates(const RowSample& sample, const Layout& layout,
                               const SampleRule& rule) {
  const Layout rows = layout_of_rows(sample, layout);
  std::vector<Gate> out;
  out.push_back(
      make_gate("rows finite", static_cast<double>(sample.not_finite), 0, {},
                sample.first_bad_row < 0 ? "" : element_name(rows, sample.first_bad_row)));
  if (sample.comparable) out.push_back(sketch_gate(sample, layout, rule));
  if (sample.comparable && rule.kind == SampleRule::Kind::error) {
    out.push_back(sketch_gain_gate(sample, rule));
  }
  return out;
}

Localisation localise_rows(const RowSample& sample, const Layout& layout, const SampleRule& rule,
                           const std::vector<Gate>& gates) {
  const auto gate =
      std::find_if(gates.begin(), gates.end(), [](const Gate& g) { return g.name == "sketch"; });
  std::vector<double> energy(sample.rms.size(), 0);
  const std::vector<double> values = row_statistics(sample, rule, layout.columns);
  double largest = 1;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, value * value);
  }
  for (size_t row = 0; row < energy.size(); ++row) {
    if (!std::isfinite(values[row])) energy[row] = largest;
    else if (gate != gates.end() && values[row] > gate->limit)
      energy[row] = values[row] * values[row];
  }
  return localise(energy, layout_of_rows(sample, layout), gates);
}

}  // namespace plumb::harness
