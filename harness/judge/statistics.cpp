#include "harness/judge/statistics.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/error_segments.h"
#include "harness/judge/lanes.h"
#include "harness/judge/limits.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

// What the errors of some rows add to the statistics.
struct ErrorSums {
  double energy = 0;  // sum d^2
  double along = 0;   // sum d o
  double element = 0;
  int64_t element_at = -1;
};

// M_E of a segment. Where sums of it are finite, so is every error.
void take_element(ErrorSums& out, const ErrorSegment& s, double row_scale, double energy) {
  const auto share = [&](size_t i) {
    return std::fabs(s.d[i]) / std::max(std::fabs(s.o[i]), row_scale);
  };
  if (std::isfinite(energy) && row_scale > 0) {
    if (!exceeds(lane_max(s.n, share), out.element)) return;
  }
  for (size_t i = 0; i < s.n; ++i) {
    const double scale = std::max(std::fabs(s.o[i]), row_scale);
    const double value = quotient(std::fabs(s.d[i]), scale);
    if (!exceeds(value, out.element)) continue;
    out.element = value;
    out.element_at = static_cast<int64_t>(s.begin + i);
  }
}

ErrorSums errors_of_part(const std::vector<double>& values, const ReferenceScales& scales,
                         const std::vector<uint8_t>& skipped, GroupSums& groups, size_t part) {
  ErrorSums out;
  GroupSums::Part sums(groups, part);
  ErrorSegment s;
  alignas(64) double squares[kSegment];
  const auto add = [&](size_t row, size_t column, size_t n) {
    s.load(values, scales, skipped, row * scales.plan->columns + column, n);
    for (size_t i = 0; i < n; ++i) squares[i] = s.d[i] * s.d[i];
    const double energy = lane_sum(n, [&](size_t i) { return squares[i]; });
    out.energy += energy;
    out.along += lane_sum(n, [&](size_t i) { return s.d[i] * s.o[i]; });
    sums.add(row, column, squares, n);
    take_element(out, s, scales.row_scale[row], energy);
  };
  for_segments(*scales.plan, part, add, [&](size_t row) { sums.end_row(row); });
  return out;
}

// v_g of the groups that count, 0 for the others.
FamilyErrors group_errors(const ReferenceScales& scales, GroupSums& groups) {
  FamilyErrors out;
  for (const FamilyScales& family : scales.families) {
    out.emplace_back(static_cast<size_t>(family.partition.groups), 0.0);
  }
  std::vector<std::vector<double>> sums = groups.finish();
  for (size_t k = 0; k < sums.size(); ++k) {
    const size_t at = scales.counted_families[k];
    const FamilyScales& family = scales.families[at];
    for (size_t g = 0; g < sums[k].size(); ++g) {
      const bool counts = family.sizes[g] >= kLimits.smallest_group;
      const double rms = counts ? std::sqrt(sums[k][g] / static_cast<double>(family.sizes[g])) : 0;
      out[at][g] = quotient(rms, family.scales[g]);
    }
  }
  return out;
}

GroupStatistic worst_group(const std::vector<double>& errors, const FamilyScales& family) {
  GroupStatistic out;
  out.family = family.partition.name;
  for (size_t g = 0; g < errors.size() && out.worst < 0;
       ++g) {  // the first that counts, if all are 0
    if (family.sizes[g] < kLimits.smallest_group) continue;
    out.worst = static_cast<int64_t>(g);
    out.worst_kappa = family.kappas[g];
  }
  for (size_t g = 0; g < errors.size(); ++g) {
    if (exceeds(errors[g], out.value)) out.value = errors[g];
    if (!exceeds(errors[g] / family.kappas[g], out.normalised)) continue;
    out.normalised = errors[g] / family.kappas[g];
    out.worst = static_cast<int64_t>(g);
    out.worst_value = errors[g];
    out.worst_kappa = family.kappas[g];
  }
  return out;
}

}  // namespace

double tensor_error(const std::vector<double>& values, const ReferenceScales& scales,
                    const std::vector<uint8_t>& skipped) {
  const auto energy_of = [&](size_t part) {
    ErrorSegment s;
    double out = 0;
    const auto add = [&](size_t row, size_t column, size_t n) {
      s.load(values, scales, skipped, row * scales.plan->columns + column, n);
      out += lane_sum(n, [&](size_t i) { return s.d[i] * s.d[i]; });
    };
    for_segments(*scales.plan, part, add, [](size_t) {});
    return out;
  };
  double energy = 0;
  for (const double part : of_row_parts(*scales.plan, energy_of)) energy += part;
  return std::sqrt(quotient(energy, scales.sum_o2));
}

Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped, FamilyErrors* errors) {
  GroupSums groups(*scales.plan);
  ErrorSums all;
  const auto of_part = [&](size_t part) {
    return errors_of_part(values, scales, skipped, groups, part);
  };
  for (const ErrorSums& part : of_row_parts(*scales.plan, of_part)) {
    all.energy += part.energy;
    all.along += part.along;
    if (!exceeds(part.element, all.element)) continue;
    all.element = part.element;
    all.element_at = part.element_at;
  }
  Statistics out;
  out.tensor = std::sqrt(quotient(all.energy, scales.size_o2));
  out.gain = quotient(all.along, scales.size_o2);
  out.element = all.element;
  out.element_at = all.element_at;
  FamilyErrors of_groups = group_errors(scales, groups);
  for (size_t k = 0; k < of_groups.size(); ++k) {
    out.families.push_back(worst_group(of_groups[k], scales.families[k]));
  }
  if (errors) *errors = std::move(of_groups);
  return out;
}

std::vector<uint8_t> not_finite(const std::vector<double>& values) {
  std::vector<uint8_t> out = shared_zeros<uint8_t>(values.size());
  shared_loop(values.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) out[i] = !std::isfinite(values[i]);
  });
  return out;
}

}  // namespace plumb::harness
