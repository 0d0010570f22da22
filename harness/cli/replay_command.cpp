#include "harness/cli/replay_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>

#include "harness/io/escape.h"
#include "harness/io/sha256.h"
#include "harness/process/interrupt.h"
#include "kernels/core/error.h"
#include "kernels/plugin/plugin_device.h"

namespace plumb::harness {

void add_replay_options(CLI::App& app, const std::shared_ptr<ReplayCommand>& options) {
  add_selection(app, options->selection);
  app.add_option("--device", options->devices,
                 "auto (the first usable of cuda, hip, opencl, cpu), or names: cpu,oracle")
      ->capture_default_str();
  app.add_option("--priority", options->priority,
                 "order in which auto looks, e.g. cpu,cuda (also PLUMB_DEVICES)");
  add_dtype(app, options->dtype, "run in this dtype instead of the recording's");
  app.add_flag("--no-fuse", options->no_fuse,
               "run fused ops as compositions with HuggingFace's eager rounding points");
  app.add_option("--impl", options->impl,
                 "only implementations in whose name this regular expression is found, for ops of "
                 "which it is found in any; harness support --impl lists them");
  app.add_option("--repeat", options->repeat, "runs per checkpoint whose bytes must agree")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option_function<std::string>(
         "--referee",
         [options](const std::string& rule) {
           options->referee = rule == "native" ? RefereeRule::always
                              : rule == "none" ? RefereeRule::never
                                               : RefereeRule::affordable;
         },
         "our own float64 block with the recorded one: native runs it for every checkpoint, auto "
         "where it takes seconds at most or the recording lacks the rounded model and the spread, "
         "none for what a run in another dtype or with other roundings lacks, and simulates "
         "nothing")
      ->check(CLI::IsMember({"auto", "native", "none"}));
  app.add_option("--threads", options->threads, "CPU threads; 0: one per core")
      ->capture_default_str();
  app.add_option(
         "--memory", options->worker.memory,
         "what may be held at once, 8GB or 512MiB: weights that stay on the device have half of it "
         "at most, checkpoints that are read, run and judged side by side the rest; one "
         "checkpoint always has what it needs; 0: half of what is available")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  add_worker_options(app, options->worker);
}

void check(const ReplayCommand& options) {
  require_known_blocks(*options.selection);
  if (!options.dtype.empty()) parse_dtype(options.dtype);
  constexpr int64_t kLeast = int64_t{1} << 20;
  const int64_t memory = options.worker.memory;
  require(memory == 0 || memory >= kLeast, "--memory", "is ", memory, " bytes, needs ", kLeast,
          " (1MiB) or more, or 0: half of what is available");
}

std::vector<Loaded> load_all(const ReplayCommand& options) {
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
    entry.replay.threads = options.threads;
    entry.replay.referee = options.referee;
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
    if (entry.chain) out.push_back({&*entry.recording, nullptr, &entry.replay});
  }
  return out;
}

int64_t results_of(const std::vector<Loaded>& recordings) {
  int64_t out = 0;
  for (const Loaded& entry : recordings) {
    const auto jobs = static_cast<int64_t>(entry.checkpoints.size()) + entry.chain;
    out += entry.error.empty() ? jobs : 1;
  }
  return out;
}

LayerShards layer_shards(const Recording& recording) {
  std::vector<std::string_view> ids;
  for (const Checkpoint& checkpoint : recording.checkpoints()) ids.push_back(checkpoint.id);
  return {recording.name(), ids};
}

void keep_shard(std::vector<Loaded>& recordings, const Shard& shard, bool by_layers) {
  std::erase_if(recordings, [&](const Loaded& entry) {
    const std::filesystem::path folder = entry.fixture;  // its name where nothing can be read
    return !entry.error.empty() &&
           !shard.has((folder.parent_path().filename() / folder.filename()).string(), "(all)");
  });
  for (Loaded& entry : recordings) {
    if (!entry.error.empty()) continue;
    const std::string& name = entry.recording->name();
    const std::optional<LayerShards> layers =
        by_layers ? std::optional(layer_shards(*entry.recording)) : std::nullopt;
    std::erase_if(entry.checkpoints, [&](size_t index) {
      const std::string& id = entry.recording->checkpoints()[index].id;
      return layers ? !layers->has(shard, id) : !shard.has(name, id);
    });
    entry.chain = entry.chain && shard.has(name, "(chain)");
  }
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
  out.again = text("harness --fixture ", shell_word(entry.fixture), " --device ", device);
  return out;
}

void require_checkpoints(int64_t count, const ReplayCommand& options, size_t recordings) {
  const Selection& s = *options.selection;
  std::string blocks;
  for (const std::string& block : s.blocks) blocks += (blocks.empty() ? " --block " : ",") + block;
  for (const std::string& suite : s.suites) blocks += " --suite " + suite;
  if (!s.direction.empty()) blocks += " --direction " + s.direction;
  require(count > 0, "selection", "no checkpoint matches", blocks,
          s.checkpoint.empty() ? "" : " --checkpoint ", s.checkpoint, " in ", recordings,
          " recording(s); harness list shows what there is");
}

RunInfo run_info(const std::vector<std::unique_ptr<Worker>>& workers) {
  std::vector<std::string> devices;
  for (const auto& w : workers) devices.push_back(w->name() + ": " + w->description());
  return run_info(devices);
}

Journal::Facts request_facts(const ReplayCommand& options) {
  const auto joined = [](const std::vector<std::string>& list) {
    std::string out;
    for (const std::string& word : list) out += (out.empty() ? "" : ",") + word;
    return out;
  };
  const Selection& s = *options.selection;
  Journal::Facts out{
      {"fixture", joined(s.fixtures)},
      {"block", joined(s.blocks)},
      {"suite", joined(s.suites)},
      {"checkpoint", s.checkpoint},
      {"direction", s.direction},
      {"dtype", options.dtype},
      {"impl", options.impl},
      {"no-fuse", options.no_fuse ? "yes" : ""},
      {"repeat", options.repeat == ReplayCommand().repeat ? "" : text(options.repeat)},
      {"referee", options.referee == RefereeRule::always  ? "native"
                  : options.referee == RefereeRule::never ? "none"
                                                          : ""},
      {"looser-contracts", looser_contracts_allowed() ? "yes" : ""}};
  std::vector<std::string> files, hashes;
  for (const LoadedPlugin& plugin : loaded_plugins()) {
    files.push_back(plugin.file);
    hashes.push_back(sha256_hex(File::open(plugin.file)));
  }
  out.emplace_back("plugin", joined(files));
  out.emplace_back("plugin-sha256", joined(hashes));
  std::erase_if(out, [](const auto& fact) { return fact.second.empty(); });
  return out;
}

Journal::Facts journal_facts(const RunInfo& run, const std::vector<Loaded>& recordings) {
  Journal::Facts out{{"program", text(run.version, ' ', sha256_hex(File::open("/proc/self/exe")))}};
  out.insert(out.end(), run.request.begin(), run.request.end());
  for (const std::string& device : run.devices) {
    out.emplace_back("device " + device.substr(0, device.find(": ")), device);
  }
  for (const Loaded& entry : recordings) {
    out.emplace_back("recording " + entry.fixture,
                     entry.recording ? entry.recording->sha256() : entry.error);
  }
  return out;
}

Request request_of(const ReplayCommand& options,
                   const std::vector<std::unique_ptr<Worker>>& workers, bool strict,
                   int64_t checkpoints) {
  Request out;
  out.checkpoints = checkpoints;
  out.signal = interrupt();
  out.strict = strict;
  out.blocks = options.selection->blocks;
  for (const auto& worker : workers) out.devices.push_back(worker->name());
  if (!options.dtype.empty()) out.dtypes = {options.dtype};
  return out;
}

}  // namespace plumb::harness
