// Results as JSON lines (harness/results.schema.json): a "run" object, one "checkpoint" object per
// checkpoint and device (after those of one checkpoint on several devices a "comparison" object
// where devices are compared), a "summary" object. Numbers that are not finite are the strings
// "inf",
// "-inf" and "nan"; invalid UTF-8 in names becomes U+FFFD.
#pragma once

#include <filesystem>
#include <string>

#include "harness/compare.h"
#include "harness/line_file.h"
#include "harness/outcome.h"
#include "harness/result.h"

namespace plumb {

inline constexpr int kResultsSchema = 1;

// The objects as text, each on one line without a line feed.
std::string run_json(const RunInfo& run);
std::string checkpoint_json(const CheckpointResult& result);
std::string comparison_json(const Comparison& comparison);
std::string summary_json(const Outcome& outcome);

// Writes them as they become known. See LineFile for what remains of a run that is cut short: a
// reader recognises it by the summary that is missing.
class ResultsWriter {
 public:
  ResultsWriter(const std::filesystem::path& path, const RunInfo& run);
  void write(const CheckpointResult& result) { file_.write(checkpoint_json(result)); }
  void write(const Comparison& comparison) { file_.write(comparison_json(comparison)); }
  // The last line; the file then has its name.
  void finish(const Outcome& outcome);

 private:
  LineFile file_;
};

}  // namespace plumb
