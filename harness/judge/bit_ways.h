// The ways to round that a recording has of an output, and the one that its bits follow.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/conformance.h"
#include "harness/judge/output_case.h"
#include "harness/recording/recording_trace.h"

namespace plumb::harness {

inline constexpr const char* kRoundsAsRecorded = "rounds as the recorded run does";
inline constexpr const char* kRoundsOnce = "rounds once, at the output";

// One way to round, and how y's bits compare with it. Where no simulation says how many may differ,
// the sums of the trace do.
struct BitWay {
  std::string name;
  std::optional<SpreadOf> bits;
  std::vector<Stage> stages;
  bool accurate = true;
  Conformance found = {};
  SmallParts parts = {};
  bool passed = false, fits = false;  // the number of bits; with how far they are off and where
};

// Whether a rounding to 16 bits feeds a sum among the operations that make an output: one that
// falls otherwise moves all that the sum makes. A fused attention rounds the weights of its own
// sum.
bool cascades(const Operations& operations);
// Whether the output is one sum, of values that were rounded before: a weight that is dequantised.
bool rounds_values_alone(const Operations& operations);
// The sums of a trace.
std::vector<Stage> stages_of(const Operations& operations);

// The rule for bits of an output that are those of this way.
ConformanceRule rule_of(const BitWay& way, const Rule& rule, int64_t columns);
// Says of each way whether y's bits are within its limits; what was measured is there.
void fit(std::vector<BitWay>& ways, const Rule& rule, int64_t columns);
// The first that y follows in all, else in the number of bits; -1: none.
int followed_of(const std::vector<BitWay>& ways);
// That one, or the one with the fewest other bits.
size_t nearest_of(const std::vector<BitWay>& ways, int followed);
// "rounds once, at the output (0.1 % differ)": the nearest, and whether it is followed.
std::string words_of(const std::vector<BitWay>& ways, size_t nearest, bool follows);
// Holds the output to the way that it follows, or, if one is `demanded`, to the nearest. Returns
// the indices of the ways that it may be like. Bits are demanded where no sum is fed by rounded
// values: there the family is small, and no flip moves others. Else an output that follows none is
// judged by its errors, compared with those of all ways.
std::vector<size_t> hold_to(const std::vector<BitWay>& ways, int followed, size_t nearest,
                            bool demanded, Rule& rule, Allowance& allowance);

}  // namespace plumb::harness
