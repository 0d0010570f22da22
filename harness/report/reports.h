// The report files of a run, which continues without those that are lost.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/io/line_file.h"
#include "harness/result/result.h"
#include "harness/run/compare.h"
#include "harness/run/outcome.h"

namespace plumb::harness {

// One of them. Opening it throws UsageError, as LineFile does; from then on an error (a disk that
// fills up) ends this file alone: it is logged, and the rest is not written.
class ReportFile {
 public:
  // option: "--json"; no path: the report was not asked for, and nothing is written.
  ReportFile(std::string option, const std::string& path);

  bool is_open() const { return file_.has_value(); }
  void write(std::string_view line);
  void commit();
  // Why it is not complete, after the option's name; "" as long as nothing is missing.
  const std::string& lost() const { return lost_; }
  // Throws that as a UsageError, if there is any.
  void require_whole() const;

 private:
  template <class Act>
  void attempt(Act act);

  std::string option_, lost_;
  std::optional<LineFile> file_;
};

struct ReportPaths {
  std::string json, junit, markdown;  // empty: not asked for
};

// JSON lines (harness/report/results_json.h) as results become known, JUnit and Markdown at the
// end.
class Reports {
 public:
  // Opens all of them, so that a run whose reports have no place does not begin: UsageError.
  explicit Reports(const ReportPaths& paths);

  void begin(const RunInfo& run);
  void write(const CheckpointResult& result);
  void write(const Comparison& comparison);
  // Ends them, JUnit last: what is lost is in the outcome by then, and in the reports after it.
  void finish(const std::vector<CheckpointResult>& results, Outcome& outcome);

 private:
  RunInfo run_;
  ReportFile json_, junit_, markdown_;
};

}  // namespace plumb::harness
