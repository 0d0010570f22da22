// The spread of simulated correct kernels: what float32 arithmetic in another order may show of
// each statistic, also where a formula for it is too narrow (one token of 48 elements) or too wide
// (a whole layer).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/statistics.h"

namespace plumb {

// One gate's statistic over the simulated kernels.
struct SpreadOf {
  std::string gate;  // "tensor", "token", ..., "gain" (of |g|), "sketch"; "bits": elements that
                     // differ from the rounded model
  double mean = 0;
  double deviation = 0;  // standard deviation, of a sample
  double largest = 0;
};

struct Spread {
  int64_t runs = 0;
  std::vector<SpreadOf> gates;

  const SpreadOf* find(std::string_view gate) const;  // null where there is none
};

// Of statistics that are measured against one oracle.
Spread spread_of(const std::vector<Statistics>& runs);

// The bits of correct kernels that differ from the model: one flip that no simulation showed may
// move a whole row.
double bits_limit(const SpreadOf& bits);
SpreadOf spread_of_counts(std::string_view gate, const std::vector<int64_t>& counts);

// What a correct kernel's statistic stays below: max(c rms, mean + 10 deviations).
double spread_limit(const SpreadOf& spread, DType storage);

}  // namespace plumb
