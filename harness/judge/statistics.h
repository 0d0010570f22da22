// The decisive statistics of an output's error d = y - o against the float64 oracle o: those that
// have limits. Everything is computed in double, in a fixed order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/reference_scales.h"

namespace plumb::harness {

// M_A of one family.
struct GroupStatistic {
  std::string_view family;
  double value = 0;       // M_A = max_g v_g, v_g = sqrt(sum d^2 / n_g) / s_g
  double normalised = 0;  // max_g v_g / kappa_g, and the group where it is reached:
  int64_t worst = -1;
  double worst_value = 0;
  double worst_kappa = 1;
};

struct Statistics {
  double tensor = 0;                     // E_T = sqrt(sum d^2 / size_o2); 0/0 = 0, x/0 = Inf
  std::vector<GroupStatistic> families;  // M_A, as ReferenceScales::families
  double element = 0;       // M_E = max_i |d_i| / s_i (M_E itself is a macro of math.h)
  int64_t element_at = -1;  // position of that element
  double gain = 0;          // g = sum d o / sum o^2, signed
};

// The decisive statistics of `values` ([rows, columns]). An element that is not finite counts (and
// makes the statistics NaN or Inf) unless `skipped` is 1 there.
// v_g of the groups of every family, 0 where they are too small to count.
using FamilyErrors = std::vector<std::vector<double>>;
// `errors`: where to keep them; null: nowhere.
Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped, FamilyErrors* errors = nullptr);
// sqrt(sum d^2 / sum o^2), as recordings state it.
double tensor_error(const std::vector<double>& values, const ReferenceScales& scales,
                    const std::vector<uint8_t>& skipped);
// 1 for every element that is not finite: what `skipped` is for a reference.
std::vector<uint8_t> not_finite(const std::vector<double>& values);

}  // namespace plumb::harness
