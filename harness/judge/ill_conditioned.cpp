#include "harness/judge/ill_conditioned.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/judge/distribution.h"
#include "harness/judge/limits.h"
#include "harness/judge/median.h"
#include "harness/judge/sums.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Of rows set aside: errors over those that correct runs have there.
constexpr double kMostOff = 32;

// What the errors of a row are measured in.
struct RowSize {
  int64_t n = 0;  // usable elements
  double rms = 0;
};

// Of rows too short to be groups the median row's size is the least: cancellation leaves one of
// their few elements small, and no error large.
std::vector<RowSize> row_sizes(const ReferenceScales& scales) {
  const auto rows = static_cast<size_t>(scales.layout.rows);
  const auto columns = static_cast<size_t>(scales.layout.columns);
  std::vector<RowSize> out(rows);
  std::vector<double> known;
  for (size_t row = 0; row < rows; ++row) {
    double energy = 0;
    for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
      if (!scales.usable[i]) continue;
      ++out[row].n;
      energy += scales.o[i] * scales.o[i];
    }
    if (out[row].n == 0) continue;
    out[row].rms = std::sqrt(energy / static_cast<double>(out[row].n));
    known.push_back(out[row].rms);
  }
  std::sort(known.begin(), known.end());
  const size_t n = known.size();
  const double middle = n == 0 ? 0 : (known[(n - 1) / 2] + known[n / 2]) / 2;
  for (RowSize& row : out) {
    const double share = row.n >= kLimits.smallest_group ? kLimits.smallest_scale : 1;
    row.rms = std::max({row.rms, share * middle, scales.smallest_normal});
  }
  return out;
}

// Of one row; where y overflows as o's rounded value does it is not off.
double row_error(const std::vector<double>& y, const ReferenceScales& scales, size_t row,
                 const RowSize& size) {
  const auto columns = static_cast<size_t>(scales.layout.columns);
  double energy = 0;
  for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
    if (!scales.usable[i]) continue;
    const double o = scales.o[i];
    if (!std::isfinite(y[i]) && y[i] == round_quickly(scales.storage, o)) continue;
    energy += (y[i] - o) * (y[i] - o);
  }
  return quotient(std::sqrt(energy / static_cast<double>(std::max<int64_t>(size.n, 1))), size.rms);
}

// 1 for the rows that these kernels are too far off in, on average.
std::vector<uint8_t> ill_rows(const std::vector<Tensor>& kernels, const ReferenceScales& scales) {
  const std::vector<RowSize> sizes = row_sizes(scales);
  std::vector<double> errors(sizes.size(), 0);
  for (const Tensor& kernel : kernels) {
    const std::vector<double> y = to_matrix(kernel, scales.layout);
    for (size_t row = 0; row < sizes.size(); ++row) {
      errors[row] += row_error(y, scales, row, sizes[row]) / static_cast<double>(kernels.size());
    }
  }
  std::vector<uint8_t> out(sizes.size());
  for (size_t row = 0; row < sizes.size(); ++row) {
    out[row] = sizes[row].n > 0 && !(errors[row] <= kLimits.ill_conditioned);
  }
  return out;
}

// One row that is set aside: root mean squares.
struct SetAside {
  int64_t row = 0;
  double size = 0, error = 0, of_correct = 0;
};

double root_mean_square(const std::vector<double>& a, const std::vector<double>* b, size_t begin,
                        size_t count) {
  double sum = 0;
  for (size_t i = begin; i < begin + count; ++i) {
    const double d = a[i] - (b ? (*b)[i] : 0);
    sum += d * d;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

std::vector<uint8_t> rows_with(const std::vector<uint8_t>& mask, const Layout& layout) {
  const auto columns = static_cast<std::ptrdiff_t>(layout.columns);
  std::vector<uint8_t> out;
  for (auto at = mask.begin(); at != mask.end(); at += columns) {
    out.push_back(std::find(at, at + columns, 1) != at + columns);
  }
  return out;
}

// All rows as one column, by which they are named.
Layout layout_of_rows(const Layout& layout) {
  std::vector<std::string> axes;
  std::vector<int64_t> extents;
  for (const int axis : {layout.batch_axis, layout.token_axis}) {
    if (axis < 0) continue;
    axes.push_back(layout.axes[static_cast<size_t>(axis)]);
    extents.push_back(layout.shape[axis]);
  }
  return layout_of(Shape(extents), axes);
}

std::string name_of_row(const Layout& layout, int64_t row) {
  return is_nameless(layout) ? row_name(layout, row) : element_name(layout_of_rows(layout), row);
}

}  // namespace

bool may_be_ill(const Statistics& reference, const ReferenceScales& scales) {
  double largest = reference.element;  // where rows are too short to be groups
  for (size_t k = 0; k < reference.families.size(); ++k) {
    const bool rows = reference.families[k].family == "token" && scales.families[k].counted > 0;
    if (rows) largest = reference.families[k].value;
  }
  return !(largest <= kLimits.ill_conditioned);
}

std::optional<OutputCase> without_ill_rows(const OutputCase& output, const CaseArrays& arrays,
                                           const ReferenceScales& scales) {
  const auto& simulate = output.allowance.simulate;
  if (!simulate) return {};
  const std::vector<Tensor> kernels = simulate(static_cast<int>(kLimits.spread_runs));
  if (kernels.empty()) return {};
  const std::vector<uint8_t> rows = ill_rows(kernels, scales);
  if (std::find(rows.begin(), rows.end(), 1) == rows.end()) return {};
  OutputCase out = output;
  out.evidence.ill_conditioned = host_tensor(DType::boolean, output.evidence.y.shape());
  const std::vector<int64_t> flat = flat_positions(arrays.layout);
  for (size_t i = 0; i < flat.size(); ++i) {
    const size_t row = i / static_cast<size_t>(arrays.layout.columns);
    out.evidence.ill_conditioned.data<uint8_t>()[flat[i]] = rows[row];
  }
  out.allowance.spread.reset();
  out.allowance.bits.reset();
  return out;
}

Gate set_aside_gate(const Evidence& evidence, const CaseArrays& arrays,
                    const std::vector<double>& oracle) {
  const Layout& layout = arrays.layout;
  const auto columns = static_cast<size_t>(layout.columns);
  const std::vector<uint8_t> ill =
      rows_with(to_mask(evidence.ill_conditioned, evidence.axes, layout), layout);
  std::vector<double> model;
  if (evidence.model.defined()) model = to_matrix(evidence.model, layout);
  std::vector<SetAside> rows;
  double largest = 0, relative = 0;
  for (size_t row = 0; row < ill.size(); ++row) {
    if (!ill[row]) continue;
    SetAside it{static_cast<int64_t>(row)};
    const auto off = [&](const std::vector<double>& of) {
      return of.empty() ? 0 : root_mean_square(of, &oracle, row * columns, columns);
    };
    it.size = root_mean_square(oracle, nullptr, row * columns, columns);
    it.error = off(arrays.y);
    it.of_correct = std::max(off(arrays.r), off(model));
    if (!std::isfinite(it.size + it.error + it.of_correct)) continue;
    largest = std::max(largest, it.of_correct);
    if (it.size > 0) relative = std::max(relative, it.of_correct / it.size);
    rows.push_back(it);
  }
  double worst = 0;
  int64_t at = -1;
  for (const SetAside& it : rows) {
    const double shared = std::min(largest, relative * it.size);
    const double allowed = std::max({it.of_correct, shared, kLimits.ill_conditioned * it.size});
    const double share = quotient(it.error, allowed);
    if (!exceeds(share, worst)) continue;
    worst = share;
    at = it.row;
  }
  return make_gate("rows set aside", worst, kMostOff, {{"largest", largest}},
                   at < 0 ? "" : name_of_row(layout, at));
}

bool most_is_set_aside(const Evidence& evidence, const CaseArrays& arrays) {
  if (!evidence.ill_conditioned.defined()) return false;
  const Layout& layout = arrays.layout;
  const std::vector<uint8_t> ill =
      rows_with(to_mask(evidence.ill_conditioned, evidence.axes, layout), layout);
  const std::vector<uint8_t> judged = rows_with(arrays.valid, layout);
  const auto counted = [](const std::vector<uint8_t>& rows) {
    return std::count(rows.begin(), rows.end(), 1);
  };
  return counted(ill) > counted(judged);
}

std::string words_of_ill_rows(const Evidence& evidence, const CaseArrays& arrays) {
  constexpr int64_t kMostNamed = 4;
  if (!evidence.ill_conditioned.defined()) return {};
  const Layout& layout = arrays.layout;
  const std::vector<uint8_t> ill =
      rows_with(to_mask(evidence.ill_conditioned, evidence.axes, layout), layout);
  std::string places;
  int64_t count = 0;
  for (size_t row = 0; row < ill.size(); ++row) {
    if (!ill[row] || count++ >= kMostNamed) continue;
    places += (places.empty() ? "" : "; ") + name_of_row(layout, static_cast<int64_t>(row));
  }
  if (count == 0) return {};
  std::string out = text(count, " of ", layout.rows, layout.rows == 1 ? " row is" : " rows are",
                         " ill conditioned (correct kernels differ from the oracle by more than ",
                         kLimits.ill_conditioned, " of its size) and set aside");
  if (layout.rows > 1 && count < layout.rows) out += ": " + places;
  return out + (count > kMostNamed && count < layout.rows ? "; ..." : "");
}

}  // namespace plumb::harness
