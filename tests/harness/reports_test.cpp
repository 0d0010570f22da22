// Files that a run writes during its work, and some that it has to do without.
#include "harness/report/reports.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness/io/log.h"
#include "harness/report/results_json.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/file_size_limit.h"
#include "tests/harness/sample_results.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

TEST_CASE("lines are in the partial file as soon as they are known") {
  const TemporaryFolder root;
  write_bytes(root / "out.jsonl", "an older report");
  const std::string partial = (root / "out.jsonl.partial").string();
  Reports reports({.json = root / "out.jsonl", .junit = {}, .markdown = {}});
  reports.begin(sample_run());
  const std::string first = run_json(sample_run()) + '\n';
  CHECK(read_bytes(partial) == first);
  reports.write(passing());
  const std::string second = checkpoint_json(passing()) + '\n';
  CHECK(read_bytes(partial) == first + second);
  CHECK(read_bytes(root / "out.jsonl") == "an older report");
  Outcome outcome = sample_outcome({passing()});
  reports.finish({passing()}, outcome);
  CHECK(read_bytes(root / "out.jsonl") == first + second + summary_json(outcome) + '\n');
  CHECK_FALSE(std::filesystem::exists(partial));
}

TEST_CASE("a run that is killed leaves what it knew") {
  const TemporaryFolder root;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Reports reports({.json = root / "out.jsonl", .junit = {}, .markdown = {}});
    reports.begin(sample_run());
    reports.write(passing());
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK_FALSE(std::filesystem::exists(root / "out.jsonl"));
  CHECK(read_bytes(root / "out.jsonl.partial") ==
        run_json(sample_run()) + '\n' + checkpoint_json(passing()) + '\n');
}

TEST_CASE("a report that has no place is refused before there is a run, and leaves none") {
  const TemporaryFolder root;
  const std::string good = root / "good", bad = root / "missing/x";
  for (const ReportPaths& paths :
       {ReportPaths{bad, good, good + "2"}, ReportPaths{good, bad, good + "2"},
        ReportPaths{good, "", bad}}) {
    const std::string error = error_text<UsageError>([&] { Reports reports(paths); });
    CHECK(contains(error, bad + ": cannot be created: No such file or directory"));
    CHECK(fs::is_empty(root.path()));
  }
}

TEST_CASE("a lost report costs neither the run nor the others, which say so") {
  const TemporaryFolder root;
  const ReportPaths paths{root / "json", root / "junit", root / "markdown"};
  Outcome outcome = sample_outcome({passing()});
  configure_log(LogLevel::warning, root / "log");
  {
    Reports reports(paths);
    reports.begin(sample_run());
    {
      const FileSizeLimit limit(1000);
      reports.write(passing());
      reports.write(passing());
    }
    reports.finish({passing()}, outcome);
  }
  configure_log(LogLevel::warning, "");
  const std::string why = "--json is incomplete: [write] " + paths.json +
                          ": cannot be written: File too large (after 1000 bytes)";
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.lost.size() == 1);
  CHECK(contains(outcome.verdict, "within its limit; " + why));
  CHECK_FALSE(fs::exists(paths.json));
  CHECK(contains(read_bytes(root / "log"), "error: " + why));
  CHECK(contains(read_bytes(paths.markdown), "(exit code 2)"));
  const std::string junit = read_bytes(paths.junit);
  CHECK(contains(junit, "name=\"every report is complete\""));
  CHECK(junit.ends_with("</testsuites>\n"));
}

TEST_CASE("a run that failed keeps its exit code when a report is lost") {
  Outcome outcome = sample_outcome({failing()});
  note_lost(outcome, "--json is incomplete");
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.verdict.ends_with("than they may be; --json is incomplete"));
}

}  // namespace
}  // namespace plumb::harness
