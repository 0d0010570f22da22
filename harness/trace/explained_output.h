// The verdict on an output that another program measures, in words: what its elements say is among
// the details that the program gives.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "harness/io/json.h"
#include "harness/judge/output_limits.h"
#include "harness/result/result.h"

namespace plumb::harness {

struct ExplainedOutput {
  OutputVerdict verdict;
  double element_limit = 0;  // that elements' errors are held to, in their size
  std::string bits;  // which roundings its bits follow; "" of an error that is no matter of those
  std::optional<KnownBugFound> known_bug;
};

// details: {"name": of the output, "labels": of axes or null, "places": of 16 bits, for each way to
//  round [the first position that differs, the one that differs the most], -1 for none}. Of an
//  output that fails there may be more:
//  {"wrong": [position, value, expected value] or null: the first element of a wrong class,
//   "differ": elements that are beyond the limit of one, "absolute": [largest difference, row-major
//   position] or null, "relative": the same, of |o|,
//   "bugs": [[name, [value of the bug, of y, of o, size of the element], ...]]}
// along: energy that is no rounding, summed along each axis of the output, one after the other;
// empty where there is no more.
ExplainedOutput explained_output(OutputLimits& limits, std::span<const double> record,
                                 JsonValue details, std::span<const double> along);

}  // namespace plumb::harness
