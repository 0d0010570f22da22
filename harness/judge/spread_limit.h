// The spread of simulated correct kernels, computed, and what it allows: also where a formula is
// too narrow (one token of 48 elements) or too wide (a whole layer).
#pragma once

#include <string_view>
#include <vector>

#include "harness/judge/statistics.h"
#include "harness/recording/spread.h"

namespace plumb::harness {

// Of statistics that are measured against one oracle.
Spread spread_of(const std::vector<Statistics>& runs);

// The bits of correct kernels that differ from the model: one flip that no simulation showed may
// move a whole row.
double bits_limit(const SpreadOf& bits);
// Of how far bits are off, or in how many of a channel.
double part_limit(const SpreadOf& part);
SpreadOf spread_of_values(std::string_view gate, const std::vector<double>& values);
SpreadOf spread_of_counts(std::string_view gate, const std::vector<int64_t>& counts);

// What a correct kernel's statistic stays below: max(c rms, mean + 10 deviations).
double spread_limit(const SpreadOf& spread, DType storage);

}  // namespace plumb::harness
