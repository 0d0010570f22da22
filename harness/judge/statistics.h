// The statistics of an output's error d = y - o against the float64 oracle o: decisive ones, which
// have limits, and a table of informative ones. Everything is computed in double, in a fixed order.
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
  double tensor = 0;                     // E_T = sqrt(sum d^2 / sum o^2); 0/0 = 0, x/0 = Inf
  std::vector<GroupStatistic> families;  // M_A, as ReferenceScales::families
  double element = 0;       // M_E = max_i |d_i| / s_i (M_E itself is a macro of math.h)
  int64_t element_at = -1;  // position of that element
  double gain = 0;          // g = sum d o / sum o^2, signed
};

// The decisive statistics of `values` ([rows, columns]). An element that is not finite counts (and
// makes the statistics NaN or Inf) unless `skipped` is 1 there.
Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped);
// v_g of the groups of every family, 0 where they are too small to count.
using FamilyErrors = std::vector<std::vector<double>>;
FamilyErrors family_errors(const std::vector<double>& values, const ReferenceScales& scales,
                           const std::vector<uint8_t>& skipped);
// The same of errors that are known already.
Statistics statistics(const std::vector<double>& values, const ReferenceScales& scales,
                      const std::vector<uint8_t>& skipped, const FamilyErrors& errors);
// E_T alone.
double tensor_error(const std::vector<double>& values, const ReferenceScales& scales,
                    const std::vector<uint8_t>& skipped);
// 1 for every element that is not finite: what `skipped` is for a reference.
std::vector<uint8_t> not_finite(const std::vector<double>& values);

// One informative number, by the name of its row in the table. `at` is a position or -1.
struct NamedValue {
  std::string_view name = {};
  double value = 0;
  int64_t at = -1;
};

struct WorstGroup {
  std::string_view family;
  std::string name;  // "token 5, head 3"
  double value = 0;  // v_g
};

// Stored with every verdict, never decisive.
struct Details {
  std::vector<NamedValue> values;  // one per row of the table in statistics.cpp
  std::vector<int64_t>
      octaves;                // of z = |d| / (u s_i): z < 2^-4, one per power of two to 2^20, rest
  std::vector<int64_t> ulps;  // of y to round(o): 0, 1, 2, 3-4, 5-8, ..., > 2^20
  std::vector<WorstGroup> worst_groups;  // the five largest v_g of every family
};

Details details(const std::vector<double>& y, const ReferenceScales& scales,
                const std::vector<uint8_t>& skipped, const FamilyErrors& errors);

}  // namespace plumb::harness
