#include "harness/judge/group_gains.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "harness/judge/distribution.h"
#include "harness/judge/error_segments.h"
#include "harness/judge/sums.h"
#include "kernels/core/shared_loop.h"

namespace plumb::harness {
namespace {

constexpr size_t kNeighbours = 8;          // columns in one line of the cache
constexpr double kMedianToSigma = 0.6745;  // median |x| of a normal distribution with sigma 1

// Sums of terms by their keys: a table without removals, of a size that is a power of two.
class SumsByKey {
 public:
  explicit SumsByKey(size_t keys)
      : mask_(std::bit_ceil(2 * std::max<size_t>(keys, 1)) - 1), slots_(mask_ + 1) {}

  void clear() {
    ++round_;
    used_.clear();
  }
  void add(double key, double first, double second) {
    const auto bits = std::bit_cast<uint64_t>(key);
    // The upper bits: those below are zero where the key was rounded to a narrow dtype.
    size_t at = (bits * 0x9e3779b97f4a7c15U) >> std::countl_zero(uint64_t{mask_});
    while (slots_[at].round == round_ && slots_[at].key != bits) at = (at + 1) & mask_;
    Slot& slot = slots_[at];
    if (slot.round != round_) {
      slot = {bits, round_, 0, 0};
      used_.push_back(at);
    }
    slot.first += first;
    slot.second += second;
  }
  int64_t keys() const { return static_cast<int64_t>(used_.size()); }
  // The squares of the sums, added in the order of their first keys.
  double first_squared() const { return squared(&Slot::first); }
  double second_squared() const { return squared(&Slot::second); }

 private:
  struct Slot {
    uint64_t key = 0;
    int64_t round = 0;
    double first = 0, second = 0;
  };

  double squared(double Slot::*sum) const {
    double out = 0;
    for (const size_t at : used_) out += slots_[at].*sum * (slots_[at].*sum);
    return out;
  }

  size_t mask_;
  std::vector<Slot> slots_;
  std::vector<size_t> used_;
  int64_t round_ = 0;
};

// Of every column the energy and the gain of which first_wins(a, b).
template <class Wins>
ColumnErrors of_both(const ColumnErrors& a, const ColumnErrors& b, const Wins& first_wins) {
  ColumnErrors out = a;
  for (size_t c = 0; c < out.energy.size(); ++c) {
    if (!first_wins(a.energy[c], b.energy[c])) out.energy[c] = b.energy[c];
    if (!first_wins(std::fabs(a.along[c]), std::fabs(b.along[c]))) out.along[c] = b.along[c];
  }
  return out;
}

// Sums over the columns of every group.
std::vector<double> grouped(const std::vector<double>& columns, const Partition& partition) {
  std::vector<double> out(static_cast<size_t>(partition.groups), 0);
  for (size_t c = 0; c < columns.size(); ++c) {
    out[static_cast<size_t>(partition.column_part[c])] += columns[c];
  }
  return out;
}

// Of at least one, none of them NaN but where y is.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  for (double& x : values) x = std::isnan(x) ? std::numeric_limits<double>::infinity() : x;
  std::nth_element(values.begin(), middle, values.end());
  return std::isfinite(*middle) ? *middle : 0;
}

}  // namespace

ColumnErrors column_errors(const std::vector<double>& values, const ReferenceScales& scales,
                           const std::vector<uint8_t>& skipped) {
  const RowPlan& plan = *scales.plan;
  const auto of_part = [&](size_t part) {
    ColumnErrors out{std::vector<double>(plan.columns, 0), std::vector<double>(plan.columns, 0)};
    ErrorSegment s;
    const auto add = [&](size_t row, size_t column, size_t n) {
      s.load(values, scales, skipped, row * plan.columns + column, n);
      double *energy = out.energy.data() + column, *along = out.along.data() + column;
      for (size_t i = 0; i < n; ++i) energy[i] += s.d[i] * s.d[i];
      for (size_t i = 0; i < n; ++i) along[i] += s.d[i] * s.o[i];
    };
    for_segments(plan, part, add, [](size_t) {});
    return out;
  };
  ColumnErrors out{std::vector<double>(plan.columns, 0), std::vector<double>(plan.columns, 0)};
  for (const ColumnErrors& part : of_row_parts(plan, of_part)) {
    for (size_t c = 0; c < plan.columns; ++c) {
      out.energy[c] += part.energy[c];
      out.along[c] += part.along[c];
    }
  }
  return out;
}

ColumnErrors larger(const ColumnErrors& a, const ColumnErrors& b) {
  return of_both(a, b, [](double x, double y) { return x >= y; });
}

ColumnErrors smaller(const ColumnErrors& a, const ColumnErrors& b) {
  return of_both(a, b, [](double x, double y) { return x <= y; });
}

GainScales::GainScales(const ReferenceScales& scales) : scales_(scales) {
  const Layout& layout = scales.layout;
  if (scales.valid_rows < kLimits.smallest_group || layout.column_axes.empty()) return;
  add_channels();
  for (const int axis : layout.column_axes) {
    const std::string& name = layout.axes[static_cast<size_t>(axis)];
    if (name != "head" && name != "kv_head") continue;
    add_heads(axis);
    return;
  }
}

GainScales::GainScales(const ReferenceScales& scales, std::vector<Family> families)
    : scales_(scales), families_(std::move(families)) {}

bool GainScales::counts(int64_t distinct, double size) const {
  const double normal = scales_.smallest_normal;
  const double least = static_cast<double>(distinct) * normal * normal;
  return distinct >= kLimits.smallest_group && size >= least;
}

void GainScales::add_channels() {
  const auto rows = static_cast<size_t>(scales_.layout.rows);
  const auto columns = static_cast<size_t>(scales_.layout.columns);
  Family out;
  out.name = "channel gain";
  out.partition = {"channel", {}, {}, scales_.layout.columns};
  for (size_t c = 0; c < columns; ++c) out.partition.column_part.push_back(static_cast<int64_t>(c));
  out.size.assign(columns, 0);
  out.alike = out.level = out.size;
  out.rows.assign(out.size.size(), 1);
  for_parts(LoopParts(columns, kNeighbours, rows * columns), [&](size_t begin, size_t end, size_t) {
    SumsByKey sums(rows);
    std::vector<double> o(rows * kNeighbours), rounded(rows * kNeighbours);
    for (size_t first = begin; first < end; first += kNeighbours) {
      const size_t n = std::min(kNeighbours, end - first);
      for (size_t row = 0; row < rows; ++row) {
        const double* of = scales_.o.data() + row * columns + first;
        for (size_t k = 0; k < n; ++k) o[k * rows + row] = of[k];
      }
      round_all(scales_.storage, o.data(), n * rows, rounded.data());
      for (size_t k = 0; k < n; ++k) {
        const size_t c = first + k;
        double size = 0, scale = 0;
        sums.clear();
        for (size_t row = 0; row < rows; ++row) {
          if (!scales_.usable[row * columns + c]) continue;
          const double x = o[k * rows + row], level = scales_.row_scale[row];
          size += x * x;
          scale += level * level;
          sums.add(rounded[k * rows + row] + 0.0, x * x, std::fabs(x) * level);
        }
        if (!counts(sums.keys(), size)) continue;
        out.size[c] = size;
        out.alike[c] = sums.first_squared() / (size * size);
        out.level[c] = sums.second_squared() / (size * scale);
        out.rows[c] = std::max(scale / size, 1.0);
      }
    }
  });
  for (const double size : out.size) out.counted += size > 0;
  families_.push_back(std::move(out));
}

// Errors of a head's elements in one row may be of one cause: none of them cancel.
void GainScales::add_heads(int axis) {
  const auto rows = static_cast<size_t>(scales_.layout.rows);
  const auto columns = static_cast<size_t>(scales_.layout.columns);
  Family out;
  out.name = "head gain";
  out.partition = along_axis(scales_.layout, axis);
  out.partition.name = "head";
  const auto heads = static_cast<size_t>(out.partition.groups);
  std::vector<double> parts(rows * heads, 0);
  for (size_t i = 0; i < scales_.o.size(); ++i) {
    const auto head = static_cast<size_t>(out.partition.column_part[i % columns]);
    if (scales_.usable[i]) parts[head * rows + i / columns] += scales_.o[i] * scales_.o[i];
  }
  out.size.assign(heads, 0);
  out.alike = out.level = out.size;
  out.rows.assign(out.size.size(), 1);
  SumsByKey sums(rows);
  for (size_t h = 0; h < heads; ++h) {
    double size = 0;
    sums.clear();
    for (size_t row = 0; row < rows; ++row) {
      const double part = parts[h * rows + row];
      size += part;
      if (part > 0) sums.add(part, part, part);
    }
    if (!counts(sums.keys(), size)) continue;
    out.size[h] = size;
    out.alike[h] = out.level[h] = sums.first_squared() / (size * size);
    ++out.counted;
  }
  families_.push_back(std::move(out));
}

std::vector<Gate> GainScales::gates(const ColumnErrors& y, const ColumnErrors& reference,
                                    double error) const {
  std::vector<Gate> out;
  for (const Family& family : families_) {
    if (family.counted > 0) out.push_back(gate(family, y, reference, error));
  }
  return out;
}

Gate GainScales::gate(const Family& family, const ColumnErrors& y, const ColumnErrors& reference,
                      double error) const {
  const bool narrow = size_of(scales_.storage) <= 2;
  const double c = c_of(scales_.storage), u = unit_roundoff(scales_.storage);
  const double groups = static_cast<double>(family.counted);
  const double deviations =
      c / kLimits.c_narrow * std::sqrt(2 * std::log(groups / kLimits.group_gain_chance));
  const double rounding2 = kLimits.rounding * kLimits.rounding * u * u;
  const double stored2 = narrow ? std::min(error * error, rounding2) : 0;
  const double constants = narrow ? 0 : kLimits.gain_roundings * u;
  const std::vector<double> energy = grouped(y.energy, family.partition),
                            along = grouped(y.along, family.partition),
                            of_reference = grouped(reference.energy, family.partition),
                            reference_along = grouped(reference.along, family.partition);
  std::vector<double> gains(energy.size(), 0), sizes = gains, noise = gains, shares;
  for (size_t g = 0; g < energy.size(); ++g) {
    const double size = family.size[g];
    if (!(size > 0)) continue;
    gains[g] = std::fabs(along[g] / size);
    const bool finite = std::isfinite(energy[g]);
    const double rest = finite ? std::max(energy[g] / size - gains[g] * gains[g], 0.0) : 0;
    const double least = stored2 + (error * error - stored2) * family.rows[g];
    const double v2 = std::max({of_reference[g] / size, least, rest});
    const double a2 = std::min(v2, rounding2);
    const double variance = narrow ? a2 * family.alike[g] + (v2 - a2) * family.level[g]
                                   : v2 * std::max(family.alike[g], family.level[g]);
    sizes[g] = std::sqrt(v2);
    noise[g] = std::sqrt(variance);
    shares.push_back(quotient(gains[g], noise[g]));
  }
  const double usual = std::max(lower_median(shares) / kMedianToSigma, 1.0);
  double worst = -1;
  size_t at = 0;
  const auto own = [&](size_t g) { return std::fabs(reference_along[g] / family.size[g]); };
  const auto limit = [&](size_t g) {
    return std::max({deviations * usual * noise[g], kLimits.group_gain_smallest * sizes[g],
                     c * own(g), constants});
  };
  for (size_t g = 0; g < energy.size(); ++g) {
    if (!(family.size[g] > 0)) continue;
    const double share = quotient(gains[g], limit(g));
    if (!exceeds(share, worst)) continue;
    worst = share;
    at = g;
  }
  return make_gate(
      family.name, gains[at], limit(at),
      {{"deviations", deviations}, {"usual", usual}, {"noise", noise[at]}, {"reference", own(at)}},
      gains[at] == 0 ? "" : group_name(scales_.layout, family.partition, static_cast<int64_t>(at)));
}

}  // namespace plumb::harness
