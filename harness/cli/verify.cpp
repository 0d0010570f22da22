// harness [options]: replays recordings on devices and judges every checkpoint.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "harness/chain_text.h"
#include "harness/cli/cli.h"
#include "harness/cli/replay_command.h"
#include "harness/console.h"
#include "harness/file.h"
#include "harness/interrupt.h"
#include "harness/junit.h"
#include "harness/log.h"
#include "harness/markdown.h"
#include "harness/outcome.h"
#include "harness/progress.h"
#include "harness/replay.h"
#include "harness/results_json.h"
#include "kernels/error.h"

namespace plumb {
namespace {

struct Options : ReplayCommand {
  bool fail_fast = false, strict = false, verbose = false;
  bool shadow = false;
  std::string mode = "isolated", json, junit, markdown;
};

// Chains have all checkpoints of their recording.
void check_mode(const Options& options) {
  const Selection& s = *options.selection;
  require(options.mode == "isolated" || (s.blocks.empty() && s.checkpoint.empty()), "--mode",
          options.mode, " runs whole models: leave out --block and --checkpoint");
  require(options.mode != "isolated" || !options.shadow, "--shadow",
          "is of chains: add --mode chained or --mode both");
}

std::vector<Loaded> load_for(const Options& options) {
  std::vector<Loaded> out = load_all(options);
  size_t chains = 0;
  for (Loaded& entry : out) {
    entry.replay.shadow = options.shadow;
    entry.chain = options.mode != "isolated" && entry.recording && entry.recording->chained();
    if (options.mode == "chained") entry.checkpoints.clear();
    chains += entry.chain || !entry.error.empty();
  }
  require(options.mode == "isolated" || chains > 0, "--mode", options.mode, ": none of ",
          out.size(), " recording(s) has a chained oracle");
  return out;
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        names_(device_names(options.devices, options.priority)),
        recordings_(load_for(options)),
        jobs_(jobs_of(recordings_)) {}

  int execute() {
    const auto start = std::chrono::steady_clock::now();
    catch_interrupts();
    require_checkpoints(total(), options_, recordings_.size());
    workers_ = open_workers(names_, options_.threads, jobs_, options_.worker);
    const RunInfo info = run_info(workers_);
    std::optional<ResultsWriter> json;
    if (!options_.json.empty()) json.emplace(options_.json, info);
    Progress progress(std::cerr, is_terminal(2), total(), terminal_columns(2));
    try {
      run_all(progress, json);
    } catch (const Interrupted&) {  // what was judged is reported
    }
    progress.erase();
    Outcome outcome =
        outcome_of(results_, request_of(options_, workers_, options_.strict, total()));
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (json) json->finish(outcome);
    if (!options_.junit.empty()) write_file(options_.junit, junit_xml(info, results_, outcome));
    if (!options_.markdown.empty()) {
      write_file(options_.markdown, markdown_summary(info, results_, outcome));
    }
    std::cout << closing_text(outcome, colours_wanted(1));
    if (stopped_) std::cout << "stopped at the first failure (--fail-fast)\n";
    return outcome.exit_code;
  }

 private:
  int64_t total() const {
    int64_t count = 0;
    for (const Loaded& entry : recordings_) {
      const auto jobs = static_cast<int64_t>(entry.checkpoints.size()) + entry.chain;
      count += entry.error.empty() ? jobs : 1;
    }
    return count * static_cast<int64_t>(names_.size());
  }

  void run_all(Progress& progress, std::optional<ResultsWriter>& json) {
    for (const auto& worker : workers_) {
      worker->start(0, jobs_.size());
      for (const Loaded& entry : recordings_) {
        if (!run_one(*worker, entry, progress, json)) return;
      }
    }
  }

  // False when the run is to stop.
  bool run_one(Worker& worker, const Loaded& entry, Progress& progress,
               std::optional<ResultsWriter>& json) {
    if (!entry.error.empty()) {
      return report(unreadable(entry, worker.name()), progress, json);
    }
    log(LogLevel::info, worker.name(), ": ", entry.fixture, ", ", entry.checkpoints.size(),
        " checkpoint(s)");
    for (size_t index : entry.checkpoints) {
      const Checkpoint& checkpoint = entry.recording->checkpoints()[index];
      if (interrupt() != 0) throw Interrupted();
      progress.show(static_cast<int64_t>(results_.size()), checkpoint.id, failures_);
      log(LogLevel::debug, worker.name(), ": ", checkpoint.id);
      if (!report(worker.next().result, progress, json)) return false;
    }
    if (!entry.chain) return true;
    progress.show(static_cast<int64_t>(results_.size()), entry.recording->name(), failures_);
    return report(worker.next().result, progress, json);
  }

  bool report(CheckpointResult result, Progress& progress, std::optional<ResultsWriter>& json) {
    if (json) json->write(result);
    const bool failed = is_failure(result.status);
    if (failed || options_.verbose) progress.erase();
    if (failed) std::cout << failure_text(result, colours_wanted(1)) << std::flush;
    else if (options_.verbose)
      std::cout << checkpoint_line(result, colours_wanted(1)) << std::flush;
    if (result.chain && !failed) {
      progress.erase();
      std::cout << chain_text(result, options_.verbose) << std::flush;
    }
    failures_ += failed;
    results_.push_back(std::move(result));
    stopped_ = failed && options_.fail_fast;
    return !stopped_;
  }

  const Options& options_;
  std::vector<std::string> names_;
  std::vector<Loaded> recordings_;
  std::vector<Job> jobs_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<CheckpointResult> results_;
  int64_t failures_ = 0;
  bool stopped_ = false;
};

}  // namespace

Action add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->devices = "auto";
  add_replay_options(app, options);
  app.add_option("--mode", options->mode,
                 "isolated: every checkpoint on recorded inputs; chained: whole models from their "
                 "ids, where a recording has the chained oracle; both")
      ->capture_default_str()
      ->check(CLI::IsMember({"isolated", "chained", "both"}));
  app.add_flag("--shadow", options->shadow,
               "chains: also the error against the float64 block on the chain's own inputs");
  app.add_option("--json", options->json, "write JSON lines to this file");
  app.add_option("--junit", options->junit, "write JUnit XML to this file");
  app.add_option("--markdown", options->markdown, "write a Markdown summary to this file");
  app.add_flag("--fail-fast", options->fail_fast, "stop at the first failure");
  app.add_flag("--strict", options->strict, "blind and unsupported checkpoints fail the run");
  app.add_flag("-v,--verbose", options->verbose, "a line per checkpoint");
  return [options] {
    check(*options);
    check_mode(*options);
    return Run(*options).execute();
  };
}

}  // namespace plumb
