#include "harness/report/reports.h"

#include <utility>

#include "harness/io/log.h"
#include "harness/report/junit.h"
#include "harness/report/markdown.h"
#include "harness/report/results_json.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// A document as the line that LineFile ends.
std::string_view without_last_feed(std::string_view document) {
  if (document.ends_with('\n')) document.remove_suffix(1);
  return document;
}

}  // namespace

ReportFile::ReportFile(std::string option, const std::string& path) : option_(std::move(option)) {
  if (!path.empty()) file_.emplace(path);
}

template <class Act>
void ReportFile::attempt(Act act) {
  if (!file_) return;
  try {
    act(*file_);
  } catch (const UsageError& error) {
    lost_ = text(option_, " is incomplete: ", error.what());
    file_.reset();
    log(LogLevel::error, lost_, "; the run continues without it");
  }
}

void ReportFile::write(std::string_view line) {
  attempt([&](LineFile& file) { file.write(line); });
}

void ReportFile::commit() {
  attempt([](LineFile& file) { file.commit(); });
}

void ReportFile::require_whole() const {
  if (!lost_.empty()) throw UsageError(lost_);
}

Reports::Reports(const ReportPaths& paths)
    : json_("--json", paths.json),
      junit_("--junit", paths.junit),
      markdown_("--markdown", paths.markdown) {}

void Reports::begin(const RunInfo& run) {
  run_ = run;
  json_.write(run_json(run_));
}

void Reports::write(const CheckpointResult& result) {
  if (json_.is_open()) json_.write(checkpoint_json(result));
}

void Reports::write(const Comparison& comparison) {
  if (json_.is_open()) json_.write(comparison_json(comparison));
}

void Reports::finish(const std::vector<CheckpointResult>& results, Outcome& outcome) {
  const auto end = [&](ReportFile& file, auto document) {
    if (file.is_open()) file.write(without_last_feed(document()));
    file.commit();
    if (!file.lost().empty()) note_lost(outcome, file.lost());
  };
  end(json_, [&] { return summary_json(outcome); });
  end(markdown_, [&] { return markdown_summary(run_, results, outcome); });
  end(junit_, [&] { return junit_xml(run_, results, outcome); });
}

}  // namespace plumb::harness
