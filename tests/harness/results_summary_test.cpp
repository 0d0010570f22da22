#include "harness/report/results_summary.h"

#include "harness/report/results_json.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/sample_results.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

// A run whose texts have no NUL, which readers of JSON refuse.
RunInfo plain_run() {
  RunInfo run = sample_run();
  run.environment = {{"compiler", "GCC 12.2.0"}};
  return run;
}

std::string lines_of(const RunInfo& run, const std::vector<CheckpointResult>& results) {
  std::string out = run_json(run) + '\n';
  for (const CheckpointResult& result : results) out += checkpoint_json(result) + '\n';
  return out;
}

TEST_CASE("the summary of lines is the one that the harness wrote for the same results") {
  const TemporaryFolder root;
  CheckpointResult seen = passing(), blind = passing();
  seen.features = {"causal", "gqa"};
  blind.features = {"causal", "window"};
  blind.blind_to = {"causal", "window"};
  blind.looser = {"bf16 acc 8"};
  const std::vector<std::vector<CheckpointResult>> runs = {
      {seen, blind},
      {failing(), blind, seen},
      {stopped(Status::unsupported, "no such op"), seen},
      {stopped(Status::blind, "constant"), stopped(Status::timeout, "late")},
      {seen, blind, seen, failing(), seen, failing(), blind, seen},
      {stopped(Status::blind, "constant"), seen, stopped(Status::blind, "constant"),
       stopped(Status::unsupported, "no such op"), stopped(Status::unsupported, "another"),
       stopped(Status::unsupported, "no such op")},
      {}};
  for (const char* strict : {"", "yes"}) {
    for (const auto& results : runs) {
      RunInfo run = plain_run();
      run.request = {{"block", "sdpa,linear"}, {"strict", strict}, {"selected", "9"}};
      write_bytes(root / "lines", lines_of(run, results));
      Outcome expected = outcome_of(results, {.strict = *strict != '\0',
                                              .blocks = {"sdpa", "linear"},
                                              .devices = {"cpu"},
                                              .dtypes = {}});
      expected.seconds = kNan;
      CHECK(summary_json(summarised(root / "lines")) == summary_json(expected));
    }
  }
}

TEST_CASE("lines that are no results are refused by number and field") {
  const TemporaryFolder root;
  const auto error_of = [&](const std::string& lines) {
    write_bytes(root / "lines", lines);
    return error_text<BadInput>([&] { summarised(root / "lines"); });
  };
  RunInfo run = plain_run();
  const std::string good = lines_of(run, {passing()});
  CHECK(contains(error_of(""), "lines: has no line that could be read"));
  CHECK(contains(error_of(good + good), "lines:3: type: is \"run\"; the first line, and no other"));
  CHECK(contains(error_of(checkpoint_json(passing())),
                 "lines:1: type: is \"checkpoint\"; the first"));
  CHECK(
      contains(error_of(good + "{\"type\":\"comparison\"}\n"), "lines:3: type: is \"comparison\""));
  CHECK(contains(error_of(good + "{\"type\""), "lines:3"));
  CHECK(contains(error_of(good + "{\"type\":\"checkpoint\",\"status\":\"fine\"}"),
                 "lines:3: status: \"fine\" is no status"));
  CHECK(contains(error_text<BadInput>([&] { summarised(root / "none"); }), "none: cannot be read"));
}

}  // namespace
}  // namespace plumb::harness
