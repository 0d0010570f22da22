// harness [options]: replays recordings on devices and judges every checkpoint.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/console.h"
#include "harness/file.h"
#include "harness/junit.h"
#include "harness/log.h"
#include "harness/markdown.h"
#include "harness/outcome.h"
#include "harness/progress.h"
#include "harness/replay.h"
#include "harness/results_json.h"

namespace plumb {
namespace {

struct Options {
  std::shared_ptr<Selection> selection = std::make_shared<Selection>();
  std::string devices = "auto", priority, dtype, impl;
  bool no_fuse = false, fail_fast = false, strict = false, verbose = false;
  int repeat = 2, threads = 0;
  WorkerOptions worker;
  std::string json, junit, markdown;
};

struct Loaded {
  std::string fixture;  // as it was found: what the repeat command names
  std::optional<Recording> recording;
  std::vector<size_t> checkpoints;
  std::string error;  // why it could not be opened
  ReplayOptions replay = {};
};

std::vector<Loaded> load_all(const Options& options) {
  std::vector<Loaded> out;
  for (const auto& folder : selected_recordings(*options.selection)) {
    Loaded entry;
    // A path below the working folder is shorter to read and to type.
    const auto relative = folder.lexically_relative(std::filesystem::current_path());
    const bool below = !relative.empty() && *relative.begin() != "..";
    entry.fixture = (below ? relative : folder).string();
    if (!options.dtype.empty()) entry.replay.dtype = parse_dtype(options.dtype);
    entry.replay.fuse = !options.no_fuse;
    entry.replay.impl = options.impl;
    entry.replay.repeat = options.repeat;
    entry.replay.fixture = entry.fixture;
    try {
      entry.recording = Recording::open(folder);
      entry.checkpoints = selected_checkpoints(*options.selection, *entry.recording);
    } catch (const BadInput& error) {
      entry.error = error.what();
    }
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<Job> jobs_of(const std::vector<Loaded>& recordings) {
  std::vector<Job> out;
  for (const Loaded& entry : recordings) {
    for (size_t index : entry.checkpoints) {
      out.push_back({&*entry.recording, &entry.recording->checkpoints()[index], &entry.replay});
    }
  }
  return out;
}

CheckpointResult unreadable(const Loaded& entry, const std::string& device) {
  CheckpointResult out;
  out.status = Status::bad_input;
  out.reason = entry.error;
  out.block = "(recording)";
  out.checkpoint = "(all)";
  out.recording = entry.fixture;
  out.fixture = entry.fixture;
  out.device = device;
  out.dtype = "-";
  out.again = text("harness --fixture ", entry.fixture, " --device ", device);
  return out;
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        names_(device_names(options.devices, options.priority)),
        recordings_(load_all(options)),
        jobs_(jobs_of(recordings_)) {}

  int execute() {
    const auto start = std::chrono::steady_clock::now();
    require_something();
    workers_ = open_workers(names_, options_.threads, jobs_, options_.worker);
    std::vector<std::string> devices;
    for (const auto& w : workers_) devices.push_back(w->name() + ": " + w->description());
    const RunInfo info = run_info(devices);
    std::optional<ResultsWriter> json;
    if (!options_.json.empty()) json.emplace(options_.json, info);
    Progress progress(std::cerr, is_terminal(2), total(), terminal_columns(2));
    for (const auto& worker : workers_) {
      worker->start(0, jobs_.size());
      for (const Loaded& entry : recordings_) {
        if (!run_one(*worker, entry, progress, json)) break;
      }
      if (stopped_) break;
    }
    progress.erase();
    Outcome outcome = outcome_of(results_, request());
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
      count += entry.error.empty() ? static_cast<int64_t>(entry.checkpoints.size()) : 1;
    }
    return count * static_cast<int64_t>(names_.size());
  }

  void require_something() const {
    require(total() > 0, "selection", "no checkpoint matches",
            options_.selection->block.empty() ? "" : " --block " + options_.selection->block,
            options_.selection->checkpoint.empty()
                ? ""
                : " --checkpoint " + options_.selection->checkpoint,
            " in ", recordings_.size(), " recording(s); harness list shows what there is");
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
      progress.show(static_cast<int64_t>(results_.size()), checkpoint.id, failures_);
      log(LogLevel::debug, worker.name(), ": ", checkpoint.id);
      if (!report(worker.next().result, progress, json)) return false;
    }
    return true;
  }

  bool report(CheckpointResult result, Progress& progress, std::optional<ResultsWriter>& json) {
    if (json) json->write(result);
    const bool failed = is_failure(result.status);
    if (failed || options_.verbose) progress.erase();
    if (failed) std::cout << failure_text(result, colours_wanted(1)) << std::flush;
    else if (options_.verbose) std::cout << checkpoint_line(result, colours_wanted(1));
    failures_ += failed;
    results_.push_back(std::move(result));
    stopped_ = failed && options_.fail_fast;
    return !stopped_;
  }

  Request request() const {
    Request out;
    out.strict = options_.strict;
    if (!options_.selection->block.empty()) out.blocks = {options_.selection->block};
    for (const auto& worker : workers_) out.devices.push_back(worker->name());
    if (!options_.dtype.empty()) out.dtypes = {options_.dtype};
    return out;
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
  add_selection(app, options->selection);
  app.add_option("--device", options->devices,
                 "auto (the first usable of cuda, hip, cpu), or names: cpu,oracle")
      ->capture_default_str();
  app.add_option("--priority", options->priority,
                 "order in which auto looks, e.g. cpu,cuda (also PLUMB_DEVICES)");
  app.add_option("--dtype", options->dtype, "run in this dtype instead of the recording's");
  app.add_flag("--no-fuse", options->no_fuse,
               "run fused ops as compositions with HuggingFace's eager rounding points");
  app.add_option("--impl", options->impl,
                 "only implementations in whose name this regular expression is found, for ops of "
                 "which it is found in any; harness support --impl lists them");
  app.add_option("--repeat", options->repeat, "runs per checkpoint whose bytes must agree")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--threads", options->threads, "CPU threads; 0: one per core")
      ->capture_default_str();
  add_worker_options(app, options->worker);
  app.add_option("--json", options->json, "write JSON lines to this file");
  app.add_option("--junit", options->junit, "write JUnit XML to this file");
  app.add_option("--markdown", options->markdown, "write a Markdown summary to this file");
  app.add_flag("--fail-fast", options->fail_fast, "stop at the first failure");
  app.add_flag("--strict", options->strict, "blind and unsupported checkpoints fail the run");
  app.add_flag("-v,--verbose", options->verbose, "a line per checkpoint");
  return [options] {
    require_known_block(options->selection->block);
    if (!options->dtype.empty()) parse_dtype(options->dtype);
    return Run(*options).execute();
  };
}

}  // namespace plumb
