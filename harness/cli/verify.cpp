// harness [options]: replays recordings on devices and judges every checkpoint.
#include "harness/cli/verify.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>

#include "harness/cli/cli.h"
#include "harness/io/log.h"
#include "harness/process/interrupt.h"
#include "harness/replay/native_block.h"
#include "harness/replay/replay.h"
#include "harness/report/chain_text.h"
#include "harness/report/console.h"
#include "harness/run/outcome.h"
#include "harness/run/progress.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Chains have all checkpoints of their recording.
void check_mode(const VerifyArguments& options) {
  const Selection& s = *options.selection;
  require(options.mode == "isolated" || (s.blocks.empty() && s.checkpoint.empty()), "--mode",
          options.mode, " runs whole models: leave out --block and --checkpoint");
  require(options.mode != "isolated" || !options.shadow, "--shadow",
          "is of chains: add --mode chained or --mode both");
  require(options.mode != "chained" || !options.margins, "--margins",
          "are of single checkpoints: leave out --mode chained, or take --mode both");
  require(!options.shard.empty() || options.shard_by == "checkpoints", "--shard-by",
          "says how --shard i/n cuts: add that");
}

std::vector<Loaded> load_for(const VerifyArguments& options) {
  std::vector<Loaded> out = load_all(options);
  const bool backward = options.selection->direction == kBackward;
  size_t chains = 0;
  for (Loaded& entry : out) {
    const auto is_single = [&](size_t index) {
      return !backward || !is_gradient_of_loss(entry.recording->checkpoints()[index]);
    };
    entry.replay.shadow = options.shadow;
    entry.replay.margins = options.margins;
    const bool wanted = options.mode != "isolated" && entry.recording;
    entry.chain = wanted && !backward && entry.recording->chained();
    if (options.mode == "chained") std::erase_if(entry.checkpoints, is_single);
    const bool has_gradients = wanted && !std::ranges::all_of(entry.checkpoints, is_single);
    chains += entry.chain || has_gradients || !entry.error.empty();
  }
  require(options.mode == "isolated" || chains > 0, "--mode", options.mode, ": none of ",
          out.size(), " recording(s) has ",
          backward ? "gradients of a loss (inspector record --backward --loss cross_entropy)"
                   : "a chained oracle");
  return out;
}

// Of the tensors that belong to it.
int64_t bytes_of(const Job& job) {
  if (!job.checkpoint) return 0;
  int64_t out = 0;
  const auto add = [&](const std::string& key) {
    const TensorInfo& info = job.recording->tensor_info(key);
    out += info.shape.numel() * size_of(info.dtype);
  };
  for (const auto& [name, input] : job.checkpoint->inputs) add(input.tensor);
  for (const auto& [name, key] : job.checkpoint->weights) add(key);
  for (const auto& [name, output] : job.checkpoint->outputs) add(output.tensor);
  return out;
}

// What each device has to give a result for.
struct Expected {
  const Loaded* entry;
  std::optional<size_t> job;  // none: the recording could not be opened
};

std::vector<Expected> steps_of(const std::vector<Loaded>& recordings) {
  std::vector<Expected> out;
  size_t job = 0;
  for (const Loaded& entry : recordings) {
    if (!entry.error.empty()) out.push_back({&entry, std::nullopt});
    for (size_t jobs = entry.checkpoints.size() + entry.chain; jobs > 0; --jobs) {
      out.push_back({&entry, job++});
    }
  }
  return out;
}

class Run {
 public:
  explicit Run(const VerifyArguments& options)
      : options_(options),
        shard_(options.shard.empty() ? Shard() : Shard::parse(options.shard)),
        names_(device_names(options.devices, options.priority)),
        recordings_(load_for(options)) {
    selected_ = results_of(recordings_);
    require_checkpoints(selected_, options_, recordings_.size());
    const Selection& asked = *options.selection;
    if (options.mode == "isolated" && asked.blocks.empty() && asked.suites.empty() &&
        asked.checkpoint.empty()) {
      chains_left_ = std::ranges::count_if(recordings_, [](const Loaded& entry) {
        return entry.recording && entry.recording->chained();
      });
    }
    keep_shard(recordings_, shard_, options_.shard_by == "layers");
    jobs_ = jobs_of(recordings_);
    steps_ = steps_of(recordings_);
    reports_.emplace(options.reports);
  }

  int execute() {
    start_ = std::chrono::steady_clock::now();
    catch_interrupts();
    workers_ = open_workers(names_, options_.threads, jobs_, options_.worker);
    RunInfo info = run_info(workers_);
    info.request = request();
    open_journal(info);
    if (options_.no_times) info.started.clear();
    reports_->begin(info);
    Progress progress(std::cerr, is_terminal(2), total(), terminal_columns(2));
    progress_ = &progress;
    for (const Job& job : jobs_) bytes_total_ += bytes_of(job) * std::ssize(names_);
    try {
      run_all();
    } catch (const Interrupted&) {  // what was judged is reported
    }
    progress.erase();
    Request asked = request_of(options_, workers_, options_.strict, total());
    asked.shard = shard_.count > 1;
    Outcome outcome = outcome_of(results_, asked);
    finish_reports(outcome);
    outcome.seconds = seconds();
    if (chains_left_ > 0) {
      std::cout << text("not run: the ", chains_left_ == 1 ? "chain" : "chains", " of ",
                        chains_left_, " recording", chains_left_ == 1 ? "" : "s",
                        ", from token ids to logits (--mode both)\n");
    }
    std::cout << closing_text(outcome, colours_wanted(1)) << std::flush;
    if (options_.worker.memory > 0) {
      std::cout << text("at most ", options_.worker.memory >> 20,
                        " MiB of operands, results and weights at a time (--memory)\n");
    }
    if (stopped_) std::cout << "stopped at the first failure (--fail-fast)\n";
    if (shard_.count > 1) {
      std::cout << text("shard ", options_.shard, ": ", steps_.size(), " of ", selected_,
                        " checkpoints; what no shard has seen is known when their reports are "
                        "merged\n");
    }
    return outcome.exit_code;
  }

 private:
  int64_t total() const { return static_cast<int64_t>(steps_.size() * names_.size()); }

  // That the run took, with what it took before it was killed.
  double seconds() const {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - start_).count() +
           (journal_ ? journal_->seconds() : 0);
  }

  Journal::Facts request() const {
    Journal::Facts out = request_facts(options_);
    if (options_.mode != "isolated") out.emplace_back("mode", options_.mode);
    if (options_.shadow) out.emplace_back("shadow", "yes");
    if (options_.margins) out.emplace_back("margins", "yes");
    if (options_.strict) out.emplace_back("strict", "yes");
    if (!options_.shard.empty()) out.emplace_back("shard", options_.shard);
    if (options_.shard_by != "checkpoints") out.emplace_back("shard-by", options_.shard_by);
    out.emplace_back("selected", text(selected_));
    return out;
  }

  void open_journal(RunInfo& info) {
    if (options_.journal.empty()) return;
    journal_.emplace(options_.journal, journal_facts(info, recordings_), info.started);
    info.started = journal_->started();
    found_ = journal_->take();
    if (journal_->dropped() > 0) {
      log(LogLevel::warning, options_.journal, ": ", journal_->dropped(),
          " bytes of a record that was cut short are left out");
    }
    require<BadInput>(static_cast<int64_t>(found_.size()) <= total(), "--journal", options_.journal,
                      ": has ", found_.size(), " results, this run ", total(),
                      "; remove it to start over");
  }

  void run_all() {
    for (const auto& worker : workers_) {
      bool started = false;
      for (const Expected& step : steps_) {
        if (results_.size() < found_.size()) {
          if (!report(known(step, *worker))) return;
          continue;
        }
        if (interrupt() != 0) throw Interrupted();
        if (step.job && !started) worker->start(*step.job, jobs_.size() - *step.job);
        started = started || step.job;
        CheckpointResult result = run_one(*worker, step);
        if (journal_) journal_->append(result, seconds());
        if (!report(std::move(result))) return;
      }
    }
  }

  CheckpointResult run_one(Worker& worker, const Expected& step) {
    if (!step.job) return unreadable(*step.entry, worker.name());
    const std::string id = id_of(step);
    progress_->bytes(bytes_done_, bytes_total_);
    progress_->show(static_cast<int64_t>(results_.size()), id, failures_);
    bytes_done_ += bytes_of(jobs_[*step.job]);
    log(LogLevel::debug, worker.name(), ": ", step.entry->fixture, ' ', id);
    return worker.next().result;
  }

  std::string id_of(const Expected& step) const {
    if (!step.job) return "(all)";
    const Checkpoint* checkpoint = jobs_[*step.job].checkpoint;
    return checkpoint ? checkpoint->id : "(chain)";
  }

  // The journal's next result, which has to be this step's.
  CheckpointResult known(const Expected& step, const Worker& worker) {
    CheckpointResult& result = found_[results_.size()];
    require<BadInput>(result.checkpoint == id_of(step) && result.device == worker.name() &&
                          result.fixture == step.entry->fixture,
                      "--journal", options_.journal, ": result ", results_.size(), " is of ",
                      result.fixture, ' ', result.checkpoint, " on ", result.device, ", expected ",
                      step.entry->fixture, ' ', id_of(step), " on ", worker.name(),
                      "; remove it to start over");
    return std::move(result);
  }

  // False when the run is to stop.
  bool report(CheckpointResult result) {
    if (options_.no_times) result.seconds = std::numeric_limits<double>::quiet_NaN();
    const bool failed = is_failure(result.status);
    if (failed || options_.verbose) progress_->erase();
    reports_->write(result);
    const bool in_full = failed && (first_failures_.is_first(result) || options_.verbose);
    if (in_full) std::cout << failure_text(result, colours_wanted(1)) << std::flush;
    else if (options_.verbose)
      std::cout << checkpoint_line(result, colours_wanted(1)) << std::flush;
    if (result.chain && !failed && options_.mode != "isolated") {
      progress_->erase();
      std::cout << chain_text(result, options_.verbose) << std::flush;
    }
    failures_ += failed;
    results_.push_back(std::move(result));
    stopped_ = failed && options_.fail_fast;
    return !stopped_;
  }

  void finish_reports(Outcome& outcome) {
    outcome.seconds = options_.no_times ? std::numeric_limits<double>::quiet_NaN() : seconds();
    reports_->finish(results_, outcome);
  }

  const VerifyArguments& options_;
  Shard shard_;
  std::vector<std::string> names_;
  std::vector<Loaded> recordings_;
  int64_t selected_ = 0;     // on each device, in all shards
  int64_t chains_left_ = 0;  // of whole models that are asked for, of single checkpoints only
  std::vector<Job> jobs_;
  std::vector<Expected> steps_;
  std::chrono::steady_clock::time_point start_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::optional<Reports> reports_;  // opened once there is something to report
  std::optional<Journal> journal_;
  Progress* progress_ = nullptr;
  int64_t bytes_done_ = 0, bytes_total_ = 0;  // of the tensors that jobs read
  FirstFailures first_failures_;
  std::vector<CheckpointResult> found_;  // in the journal
  std::vector<CheckpointResult> results_;
  int64_t failures_ = 0;
  bool stopped_ = false;
};

}  // namespace

Action add_verify(CLI::App& app) {
  auto options = std::make_shared<VerifyArguments>();
  options->devices = "auto";
  add_replay_options(app, options);
  app.add_option("--mode", options->mode,
                 "isolated: every checkpoint on recorded inputs; chained: whole models from their "
                 "ids, where a recording has the chained oracle, or with --direction backward from "
                 "their loss; both")
      ->capture_default_str()
      ->check(CLI::IsMember({"isolated", "chained", "both"}));
  app.add_flag("--shadow", options->shadow,
               "chains: also the error against the float64 block on the chain's own inputs");
  app.add_flag("--margins", options->margins,
               "also plant known bugs in the float64 block: how far is each from passing");
  app.add_option("--relations", options->relations,
                 "single ops: also calls of the same rows alone, moved, next to others, padded; "
                 "contract: bits where a kernel promises them, else limits; bits: of all")
      ->expected(0, 1)
      ->default_str("contract")
      ->check(CLI::IsMember({"contract", "bits"}));
  app.add_option("--json", options->reports.json, "write JSON lines to this file");
  app.add_option("--junit", options->reports.junit, "write JUnit XML to this file");
  app.add_option("--markdown", options->reports.markdown, "write a Markdown summary to this file");
  app.add_flag("--no-times", options->no_times,
               "leave times out of the reports: equal runs then write equal bytes");
  app.add_option("--shard", options->shard,
                 "i/n: the i-th of n parts of what is selected, the same whatever else there is");
  app.add_option("--shard-by", options->shard_by,
                 "layers: neighbouring layers together, so that a machine needs few of a "
                 "recording's bytes; checkpoints: each for itself")
      ->capture_default_str()
      ->check(CLI::IsMember({"checkpoints", "layers"}));
  app.add_option("--journal", options->journal,
                 "keep results in this file, and continue with those that it has");
  app.add_flag("--fail-fast", options->fail_fast, "stop at the first failure");
  app.add_flag("--strict", options->strict, "blind and unsupported checkpoints fail the run");
  app.add_flag("-v,--verbose", options->verbose,
               "a line per checkpoint, and every failure in full");
  return [options] {
    check(*options);
    check_mode(*options);
    if (verifies_ops(*options)) return verify_ops(*options);
    return Run(*options).execute();
  };
}

}  // namespace plumb::harness
