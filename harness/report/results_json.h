// Results as JSON lines (harness/results.schema.json): a "run" object, one "checkpoint" object per
// checkpoint and device (after those of one checkpoint on several devices a "comparison" object
// where devices are compared), a "summary" object. Numbers that are not finite are the strings
// "inf",
// "-inf" and "nan"; invalid UTF-8 in names becomes U+FFFD.
#pragma once

#include <string>

#include "harness/replay/result_json.h"
#include "harness/run/compare.h"
#include "harness/run/outcome.h"

namespace plumb::harness {

inline constexpr int kResultsSchema = 1;

// The objects as text, each on one line without a line feed.
std::string run_json(const RunInfo& run);
std::string comparison_json(const Comparison& comparison);
std::string summary_json(const Outcome& outcome);

}  // namespace plumb::harness
