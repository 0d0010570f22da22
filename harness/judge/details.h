// The informative statistics of an output's error d = y - o against the float64 oracle o: stored
// with every verdict, never decisive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/reference_scales.h"
#include "harness/judge/statistics.h"

namespace plumb::harness {

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

struct Details {
  std::vector<NamedValue> values;  // one per row of the table in details.cpp
  std::vector<int64_t>
      octaves;                // of z = |d| / (u s_i): z < 2^-4, one per power of two to 2^20, rest
  std::vector<int64_t> ulps;  // of y to round(o): 0, 1, 2, 3-4, 5-8, ..., > 2^20
  std::vector<WorstGroup> worst_groups;  // the five largest v_g of every family
};

Details details(const std::vector<double>& y, const ReferenceScales& scales,
                const std::vector<uint8_t>& skipped, const FamilyErrors& errors);

}  // namespace plumb::harness
