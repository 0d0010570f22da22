#include "harness/judge/reference_scales.h"

#include <array>
#include <limits>
#include <utility>

#include "harness/judge/error_segments.h"
#include "harness/judge/lanes.h"
#include "harness/judge/limits.h"
#include "harness/judge/median.h"

namespace plumb::harness {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kMedianToSigma = 0.6745;  // median |x| of a normal distribution with sigma 1

// Leaves of many values, none of them negative, those that are next to the middle one, and the
// largest of those below; how many are below. Selecting from all of them would cost a misguessed
// branch for each.
struct Middle {
  std::vector<double> values;
  size_t below = 0;
  double largest_below = 0;
};

Middle around_middle(const std::vector<double>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  std::array<size_t, kMedianParts> counts{};
  for (const double x : values) ++counts[median_part(x, largest)];
  Middle out;
  size_t part = 0, above = 0;
  for (; values.size() - above - counts[part] > values.size() / 2; ++part) above += counts[part];
  out.below = values.size() - above - counts[part];
  for (const double x : values) {
    const size_t of = median_part(x, largest);
    if (of == part) out.values.push_back(x);
    if (of > part) out.largest_below = std::max(out.largest_below, x);
  }
  return out;
}

// The middle value, or the mean of the two middle ones; 0 for none. Reorders `values`; O(n).
double median(std::vector<double>& values) {
  constexpr size_t kMany = 512;
  if (values.size() >= kMany) {
    Middle middle = around_middle(values);
    const size_t index = values.size() / 2 - middle.below;
    const auto at = middle.values.begin() + static_cast<std::ptrdiff_t>(index);
    std::nth_element(middle.values.begin(), at, middle.values.end());
    if (values.size() % 2 == 1) return *at;
    const double before =
        index == 0 ? middle.largest_below : *std::max_element(middle.values.begin(), at);
    return (before + *at) / 2;
  }
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// What the rows of one part say of all.
struct Totals {
  double first = 0, max_abs = 0, sum_o2 = 0;
  int64_t n = 0;
  bool constant = true;

  void add(const Totals& part) {
    if (part.n == 0) return;
    if (n == 0) first = part.first;
    constant = constant && part.constant && part.first == first;
    max_abs = std::max(max_abs, part.max_abs);
    sum_o2 += part.sum_o2;
    n += part.n;
  }
};

// Sums over o, whose elements that are not usable are 0.
class OracleRows {
 public:
  OracleRows(ReferenceScales& scales, const RowPlan& plan)
      : scales_(scales), plan_(plan), energy_(plan), sizes_(plan), counts_(plan.rows, 0) {}

  Totals add_part(size_t part) {
    GroupSums::Part energy(energy_, part), sizes(sizes_, part);
    std::vector<double> magnitudes(plan_.columns);
    Totals out;
    size_t usable = 0;  // of the row
    const auto add = [&](size_t row, size_t column, size_t n) {
      const Totals of = add_segment(energy, sizes, row, column, n, magnitudes.data() + usable);
      usable += static_cast<size_t>(of.n);
      out.add(of);
    };
    const auto end_row = [&](size_t row) {
      energy.end_row(row);
      sizes.end_row(row);
      counts_[row] = usable > 0;
      magnitudes.resize(usable);
      if (usable > 0) scales_.row_scale[row] = median(magnitudes) / kMedianToSigma;
      magnitudes.resize(plan_.columns);
      usable = 0;
    };
    for_segments(plan_, part, add, end_row);
    return out;
  }

  const std::vector<uint8_t>& rows_that_count() const { return counts_; }
  std::vector<std::vector<double>> energy() { return energy_.finish(); }
  std::vector<std::vector<double>> sizes() { return sizes_.finish(); }

 private:
  Totals add_segment(GroupSums::Part& energy, GroupSums::Part& sizes, size_t row, size_t column,
                     size_t n, double* magnitudes) {
    const double* o = scales_.o.data() + row * plan_.columns + column;
    uint8_t* usable = scales_.usable.data() + row * plan_.columns + column;
    alignas(64) double squares[kSegment] = {};
    alignas(64) double counts[kSegment];
    for (size_t i = 0; i < n; ++i) {
      usable[i] = static_cast<uint8_t>(usable[i] & (std::fabs(o[i]) <= kLargest));
    }
    Totals out;
    for (size_t i = 0; i < n; ++i) out.n += usable[i];
    const bool all = out.n == static_cast<int64_t>(n);
    for (size_t i = 0; i < n; ++i) {
      squares[i] = all || usable[i] ? o[i] * o[i] : 0.0;
      counts[i] = usable[i];
    }
    energy.add(row, column, squares, n);
    sizes.add(row, column, counts, n);
    out.sum_o2 = lane_sum(n, [&](size_t i) { return squares[i]; });
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      magnitudes[count] = std::fabs(o[i]);
      count += usable[i];
    }
    out.max_abs = lane_max(count, [&](size_t i) { return magnitudes[i]; });
    const uint8_t* first = std::find(usable, usable + n, 1);
    if (first == usable + n) return out;
    out.first = o[first - usable];
    size_t other = 0;
    for (size_t i = 0; i < n; ++i) other += usable[i] & (o[i] != out.first);
    out.constant = other == 0;
    return out;
  }

  ReferenceScales& scales_;
  const RowPlan& plan_;
  GroupSums energy_, sizes_;
  std::vector<uint8_t> counts_;  // per row: an element is usable
};

void limit_row_scales(ReferenceScales& s, const std::vector<uint8_t>& counts) {
  std::vector<double> medians;
  for (size_t row = 0; row < counts.size(); ++row) {
    if (counts[row]) medians.push_back(s.row_scale[row]);
  }
  s.valid_rows = static_cast<int64_t>(medians.size());
  const double smallest = std::max(kLimits.smallest_scale * median(medians), s.smallest_normal);
  for (double& scale : s.row_scale) scale = std::max(scale, smallest);
}

FamilyScales family_scales(Partition partition, std::vector<double> energy,
                           const std::vector<double>& sizes, double smallest_normal) {
  FamilyScales out;
  const auto groups = static_cast<size_t>(partition.groups);
  out.scales = std::move(energy);
  out.sizes.assign(sizes.begin(), sizes.end());
  std::vector<double> rms;
  int64_t size = 0;
  for (size_t g = 0; g < groups; ++g) {
    if (out.sizes[g] < kLimits.smallest_group) continue;
    out.scales[g] = std::sqrt(out.scales[g] / static_cast<double>(out.sizes[g]));
    rms.push_back(out.scales[g]);
    if (rms.size() == 1) size = out.sizes[g];
    out.uniform = out.uniform && out.sizes[g] == size;
  }
  out.counted = static_cast<int64_t>(rms.size());
  const double smallest = std::max(kLimits.smallest_scale * median(rms), smallest_normal);
  out.kappas.assign(groups, 1);
  for (size_t g = 0; g < groups; ++g) {
    const bool counts = out.sizes[g] >= kLimits.smallest_group;
    out.scales[g] = counts ? std::max(out.scales[g], smallest) : 0;
    if (counts) out.kappas[g] = kappa(out.sizes[g], out.counted);
  }
  out.partition = std::move(partition);
  return out;
}

}  // namespace

ReferenceScales reference_scales(const Layout& layout, std::vector<double> o,
                                 const std::vector<uint8_t>& valid, DType storage) {
  ReferenceScales out;
  out.layout = layout;
  out.storage = storage;
  if (is_floating(storage)) out.smallest_normal = std::ldexp(1.0, info(storage).min_exponent);
  out.o = std::move(o);
  out.usable = valid;
  out.row_scale.assign(static_cast<size_t>(layout.rows), 0);
  std::vector<Partition> families = error_families(layout);
  const RowPlan plan(layout, families);
  OracleRows rows(out, plan);
  Totals totals;
  const auto add_part = [&](size_t part) { return rows.add_part(part); };
  for (const Totals& part : of_row_parts(plan, add_part)) totals.add(part);
  out.n = totals.n;
  out.constant = totals.constant;
  out.max_abs = totals.max_abs;
  const double normal = out.smallest_normal;
  out.sum_o2 = totals.sum_o2;
  out.size_o2 = std::max(totals.sum_o2, static_cast<double>(out.n) * normal * normal);
  limit_row_scales(out, rows.rows_that_count());
  std::vector<std::vector<double>> energy = rows.energy(), sizes = rows.sizes();
  std::vector<Partition> counted;
  for (size_t k = 0; k < families.size(); ++k) {
    out.families.push_back(family_scales(families[k], std::move(energy[k]), sizes[k], normal));
    if (out.families.back().counted == 0) continue;
    out.counted_families.push_back(k);
    counted.push_back(std::move(families[k]));
  }
  out.plan = std::make_shared<const RowPlan>(layout, std::move(counted));
  return out;
}

}  // namespace plumb::harness
