#include "harness/report/junit.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "harness/io/escape.h"
#include "harness/report/console.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr size_t kMostMargins = 20;  // of one suite

struct Suite {
  std::string recording, device;
  std::vector<const CheckpointResult*> results;
};

bool is_skipped(Status status) { return status == Status::blind || status == Status::unsupported; }
bool is_judged_bad(Status status) {
  return status == Status::fail || status == Status::nondeterministic;
}

struct Totals {
  int64_t tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;

  void add(const CheckpointResult& result) {
    ++tests;
    failures += is_judged_bad(result.status);
    skipped += is_skipped(result.status);
    errors += is_failure(result.status) && !is_judged_bad(result.status);
    if (std::isfinite(result.seconds)) seconds += result.seconds;
  }
};

std::vector<Suite> suites_of(const std::vector<CheckpointResult>& results) {
  std::vector<Suite> suites;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (const CheckpointResult& result : results) {
    const auto [place, is_new] =
        index.try_emplace({result.recording, result.device}, suites.size());
    if (is_new) suites.push_back({result.recording, result.device, {}});
    suites[place->second].results.push_back(&result);
  }
  return suites;
}

std::string attribute(const char* name, std::string_view value) {
  return text(' ', name, "=\"", xml_text(value), '"');
}

std::string time_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) seconds = 0;
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), seconds, std::chars_format::fixed, 6);
  return end.ec == std::errc() ? std::string(buffer, end.ptr) : "0";
}

std::string totals_text(const Totals& n, double seconds) {
  return text(" tests=\"", n.tests, "\" failures=\"", n.failures, "\" errors=\"", n.errors,
              "\" time=\"", time_text(seconds), '"');
}

std::string properties(const RunInfo& run, const Suite& suite) {
  std::string out = "    <properties>\n";
  const auto add = [&](std::string_view name, std::string_view value) {
    out += text("      <property", attribute("name", name), attribute("value", value), "/>\n");
  };
  add("version", run.version);
  add("command", run.command);
  for (const auto& [name, value] : run.environment) add(name, value);
  for (const std::string& device : run.devices) add("device", device);
  std::vector<KnownBug> bugs = known_bugs_of(suite.results);
  bugs.resize(std::min(bugs.size(), kMostMargins));
  for (const KnownBug& it : bugs) {
    add(text("margin of ", it.block, ": ", it.nearest.bug),
        text(margin_text(it.nearest), ", ", it.checkpoint, ' ', it.dtype));
  }
  return out + "    </properties>\n";
}

// failure or error: what to do with the text is the same for both.
std::string problem(const char* element, const CheckpointResult& result) {
  return text("      <", element, attribute("type", name_of(result.status)),
              attribute("message", result.reason), '>', xml_text(failure_text(result)), "</",
              element, ">\n");
}

std::string test_case(const CheckpointResult& result) {
  std::string body;
  if (is_skipped(result.status)) {
    body = text("      <skipped",
                attribute("message", text(name_of(result.status), ": ", result.reason)), "/>\n");
  } else if (is_failure(result.status)) {
    body = problem(is_judged_bad(result.status) ? "failure" : "error", result);
  }
  if (!result.blind_to.empty()) {
    std::string names;
    for (const std::string& feature : result.blind_to)
      names += (names.empty() ? "" : ", ") + feature;
    body += text("      <system-out>", xml_text("blind to: " + names), "</system-out>\n");
  }
  for (const std::string& contract : result.looser) {
    body += text("      <system-out>", xml_text("looser contract: " + contract), "</system-out>\n");
  }
  const std::string head =
      text("    <testcase", attribute("classname", result.recording + " on " + result.device),
           attribute("name", text(result.checkpoint, ' ', result.dtype)), " time=\"",
           time_text(result.seconds), '"');
  return body.empty() ? head + "/>\n" : text(head, ">\n", body, "    </testcase>\n");
}

std::string suite_text(const Suite& suite, const RunInfo& run) {
  Totals totals;
  std::string cases;
  for (const CheckpointResult* result : suite.results) {
    totals.add(*result);
    cases += test_case(*result);
  }
  return text("  <testsuite", attribute("name", suite.recording + " on " + suite.device),
              totals_text(totals, totals.seconds), " skipped=\"", totals.skipped, '"',
              run.started.empty() ? "" : attribute("timestamp", run.started), ">\n",
              properties(run, suite), cases, "  </testsuite>\n");
}

// What a run without a failing checkpoint did not live up to.
const char* demand(const Outcome& outcome) {
  if (!outcome.interrupted.empty()) return "what was selected was judged";
  return outcome.lost.empty() ? "what was selected proves what was asked"
                              : "every report is complete";
}

// For a run whose exit code is not 0 although no checkpoint is to blame, or not they alone.
std::string run_text(const Outcome& outcome) {
  const Totals one{.tests = 1, .failures = 1};
  return text("  <testsuite name=\"selection\"", totals_text(one, 0),
              ">\n    <testcase classname=\"selection\" name=\"", demand(outcome),
              "\" time=\"0\">\n      <failure type=\"exit code ", outcome.exit_code, '"',
              attribute("message", outcome.verdict), '>', xml_text(closing_text(outcome)),
              "</failure>\n    </testcase>\n  </testsuite>\n");
}

}  // namespace

std::string junit_xml(const RunInfo& run, const std::vector<CheckpointResult>& results,
                      const Outcome& outcome) {
  Totals totals;
  for (const CheckpointResult& result : results) totals.add(result);
  std::string suites;
  for (const Suite& suite : suites_of(results)) suites += suite_text(suite, run);
  const bool blamed = totals.failures + totals.errors > 0;
  if (!outcome.interrupted.empty() || (outcome.exit_code != 0 && !blamed)) {
    ++totals.tests;
    ++totals.failures;
    suites += run_text(outcome);
  }
  return text("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"harness\"",
              totals_text(totals, outcome.seconds), ">\n", suites, "</testsuites>\n");
}

}  // namespace plumb::harness
