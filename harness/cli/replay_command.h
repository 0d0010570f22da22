// What the commands that replay recordings on devices share: their options, and what they work on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/cli/cli.h"
#include "harness/run/journal.h"
#include "harness/run/outcome.h"
#include "harness/run/shard.h"
#include "harness/run/worker.h"

namespace plumb::harness {

struct ReplayCommand {
  std::shared_ptr<Selection> selection = std::make_shared<Selection>();
  std::string devices, priority, dtype, impl;
  bool no_fuse = false;
  int repeat = 2, threads = 0;
  RefereeRule referee = RefereeRule::affordable;
  WorkerOptions worker;
};

void add_replay_options(CLI::App& app, const std::shared_ptr<ReplayCommand>& options);
// Throws UsageError for an unknown block or dtype.
void check(const ReplayCommand& options);

struct Loaded {
  std::string fixture;  // as it was found: what the repeat command names
  std::optional<Recording> recording;
  std::vector<size_t> checkpoints;
  std::string error;   // why it could not be opened
  bool chain = false;  // its chain runs, too
  ReplayOptions replay = {};
};

std::vector<Loaded> load_all(const ReplayCommand& options);
std::vector<Job> jobs_of(const std::vector<Loaded>& recordings);
// Results that each device gives: one for a recording that could not be opened.
int64_t results_of(const std::vector<Loaded>& recordings);
// What of them is in the shard; a chain is in one, and so is a recording that could not be opened.
void keep_shard(std::vector<Loaded>& recordings, const Shard& shard, bool by_layers);
// The result of a recording that could not be opened.
CheckpointResult unreadable(const Loaded& entry, const std::string& device);
// Throws UsageError when nothing was selected.
void require_checkpoints(int64_t count, const ReplayCommand& options, size_t recordings);
RunInfo run_info(const std::vector<std::unique_ptr<Worker>>& workers);
// What results depend on, by name: RunInfo::request, without "selected".
Journal::Facts request_facts(const ReplayCommand& options);
// What has to be the same for a run to continue with the results of another.
Journal::Facts journal_facts(const RunInfo& run, const std::vector<Loaded>& recordings);
Request request_of(const ReplayCommand& options,
                   const std::vector<std::unique_ptr<Worker>>& workers, bool strict,
                   int64_t checkpoints);

}  // namespace plumb::harness
