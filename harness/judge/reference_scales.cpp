#include "harness/judge/reference_scales.h"

#include <array>
#include <numeric>

#include "harness/judge/limits.h"
#include "harness/judge/median.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

constexpr double kMedianToSigma = 0.6745;  // median |x| of a normal distribution with sigma 1

// Leaves of many values, none of them negative, those that lie next to the middle one, and the
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

void set_totals(ReferenceScales& s) {
  struct Totals {
    double first = 0, max_abs = 0;
    int64_t n = 0;
    bool constant = true;
  };
  const auto totals_of = [&](size_t begin, size_t end) {
    Totals out;
    for (size_t i = begin; i < end; ++i) {
      if (!s.usable[i]) continue;
      if (out.n++ == 0) out.first = s.o[i];
      out.constant = out.constant && s.o[i] == out.first;
      out.max_abs = std::max(out.max_abs, std::fabs(s.o[i]));
    }
    return out;
  };
  Totals all;
  for (const Totals& part : shared_parts(s.o.size(), totals_of)) {
    if (part.n == 0) continue;
    if (all.n == 0) all.first = part.first;
    all.constant = all.constant && part.constant && part.first == all.first;
    all.max_abs = std::max(all.max_abs, part.max_abs);
    all.n += part.n;
  }
  s.n = all.n;
  s.constant = all.constant;
  s.max_abs = all.max_abs;
  s.sum_o2 = chunked_sum(s.o.size(), [&](size_t i) { return s.usable[i] ? s.o[i] * s.o[i] : 0.0; });
}

void set_row_scales(ReferenceScales& s) {
  const auto columns = static_cast<size_t>(s.layout.columns);
  s.row_scale.assign(static_cast<size_t>(s.layout.rows), 0);
  std::vector<uint8_t> counts(s.row_scale.size(), 0);
  const LoopParts parts(s.row_scale.size(), 1, s.o.size());
  for_parts(parts, [&](size_t first_row, size_t end_row, size_t) {
    std::vector<double> magnitudes;
    for (size_t row = first_row; row < end_row; ++row) {
      magnitudes.clear();
      for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
        if (s.usable[i]) magnitudes.push_back(std::fabs(s.o[i]));
      }
      counts[row] = !magnitudes.empty();
      if (counts[row]) s.row_scale[row] = median(magnitudes) / kMedianToSigma;
    }
  });
  std::vector<double> medians;
  for (size_t row = 0; row < counts.size(); ++row) {
    if (counts[row]) medians.push_back(s.row_scale[row]);
  }
  s.valid_rows = static_cast<int64_t>(medians.size());
  const double smallest = kLimits.smallest_scale * median(medians);
  for (double& scale : s.row_scale) scale = std::max(scale, smallest);
}

FamilyScales family_scales(const ReferenceScales& s, Partition partition) {
  FamilyScales out;
  const auto groups = static_cast<size_t>(partition.groups);
  out.sizes.assign(groups, 0);
  out.scales.assign(groups, 0);
  add_groups(out.scales, partition, [&](size_t i) { return s.usable[i] ? s.o[i] * s.o[i] : 0.0; });
  add_groups(out.sizes, partition, [&](size_t i) { return int64_t{s.usable[i]}; });
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
  const double smallest = kLimits.smallest_scale * median(rms);
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
  out.o = std::move(o);
  out.usable = valid;
  shared_loop(out.o.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) out.usable[i] = valid[i] && std::isfinite(out.o[i]);
  });
  set_totals(out);
  set_row_scales(out);
  for (Partition& family : error_families(out.layout)) {
    out.families.push_back(family_scales(out, std::move(family)));
  }
  return out;
}

}  // namespace plumb::harness
