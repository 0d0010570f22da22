// harness compare-devices: the same checkpoints on several devices, held to the recording and to
// each other.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/cli/replay_command.h"
#include "harness/process/interrupt.h"
#include "harness/report/compare_report.h"
#include "harness/report/console.h"
#include "harness/report/reports.h"
#include "harness/run/outcome.h"
#include "harness/run/progress.h"

namespace plumb::harness {
namespace {

struct CompareArguments : ReplayCommand {
  bool strict = false;
  ReportPaths reports;
};

// All devices at once: each has a process of its own.
Comparison compare_job(const std::vector<std::unique_ptr<Worker>>& workers, const Job& job,
                       size_t index) {
  if (interrupt() != 0) throw Interrupted();
  for (const auto& worker : workers) worker->start(index, 1);
  std::vector<Replayed> replayed;
  for (const auto& worker : workers) replayed.push_back(worker->next());
  return compare(*job.recording, *job.checkpoint, std::move(replayed));
}

int compare_devices(const CompareArguments& options) {
  const auto start = std::chrono::steady_clock::now();
  catch_interrupts();
  const std::vector<std::string> names = device_names(options.devices, options.priority);
  require(names.size() > 1, "--device", options.devices,
          " is one device, expected two or more, such as cpu,oracle");
  const std::vector<Loaded> recordings = load_all(options);
  const std::vector<Job> jobs = jobs_of(recordings);
  std::vector<CheckpointResult> results;
  for (const Loaded& entry : recordings) {
    if (!entry.error.empty()) results.push_back(unreadable(entry, "-"));
  }
  const auto total = static_cast<int64_t>(jobs.size());
  require_checkpoints(total + static_cast<int64_t>(results.size()), options, recordings.size());
  const int64_t selected =
      static_cast<int64_t>(results.size()) + total * static_cast<int64_t>(names.size());
  for (const CheckpointResult& bad : results) std::cout << failure_text(bad, colours_wanted(1));

  Reports reports(options.reports);
  WorkerOptions worker_options = options.worker;
  worker_options.keep_outputs = true;
  const auto workers = open_workers(names, options.threads, jobs, worker_options);
  std::vector<std::string> devices;
  for (const auto& worker : workers) devices.push_back(worker->name());
  reports.begin(run_info(workers));

  Progress progress(std::cerr, is_terminal(2), total, terminal_columns(2));
  std::vector<Comparison> comparisons;
  int64_t found = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    progress.show(static_cast<int64_t>(i), jobs[i].checkpoint->id, found);
    try {
      comparisons.push_back(compare_job(workers, jobs[i], i));
    } catch (const Interrupted&) {  // what was compared is reported
      break;
    }
    const Comparison& c = comparisons.back();
    results.insert(results.end(), c.results.begin(), c.results.end());
    found += c.finding != Finding::agree && c.finding != Finding::not_compared;
    for (const CheckpointResult& result : c.results) reports.write(result);
    reports.write(c);
  }
  progress.erase();
  Outcome outcome = outcome_of(results, request_of(options, workers, options.strict, selected));
  if (outcome.exit_code == 0 && found > 0) {
    outcome.exit_code = exit_code(Status::fail);
    outcome.verdict = text("fail: devices differ by more than their limits in ", found,
                           " checkpoints, though none leaves those of the recording");
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  reports.finish(results, outcome);
  std::cout << comparison_text(comparisons, devices, colours_wanted(1)) << '\n'
            << comparisons.size() << " checkpoints on " << devices.size() << " devices in "
            << seconds_text(outcome.seconds) << " s   " << outcome.verdict << '\n';
  return outcome.exit_code;
}

}  // namespace

Action add_compare_devices(CLI::App& app) {
  auto options = std::make_shared<CompareArguments>();
  add_replay_options(app, options);
  app.get_option("--device")->required();
  app.add_option("--json", options->reports.json, "write JSON lines to this file");
  app.add_flag("--strict", options->strict, "blind and unsupported checkpoints fail the run");
  return [options] {
    check(*options);
    return compare_devices(*options);
  };
}

}  // namespace plumb::harness
