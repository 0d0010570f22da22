// harness support: what each device can verify, found by running the smallest checkpoint of each
// block.
#include <CLI/CLI.hpp>
#include <iostream>
#include <set>

#include "blocks/catalog.h"
#include "harness/cli/cli.h"
#include "harness/cli/support_ops.h"
#include "harness/io/escape.h"
#include "harness/process/isolated.h"
#include "harness/referee/features.h"
#include "harness/replay/replay.h"
#include "harness/run/impl_coverage.h"

namespace plumb::harness {
namespace {

struct Smallest {
  std::optional<Recording> recording;
  size_t index = 0;
  int64_t elements = 0;
};

// Gradients are judged in the dtype of the recording alone: a key for each.
std::string key_of(const Checkpoint& checkpoint, DType dtype) {
  if (forward_of(checkpoint.block).empty()) return checkpoint.block;
  return text(checkpoint.block, ' ', name_of(dtype));
}

std::map<std::string, Smallest> smallest_checkpoints(const Selection& selection) {
  std::map<std::string, Smallest> out;
  for (const auto& folder : selected_recordings(selection)) {
    const Recording recording = Recording::open(folder);
    for (size_t i : selected_checkpoints(selection, recording)) {
      const Checkpoint& checkpoint = recording.checkpoints()[i];
      const int64_t elements = elements_of(recording, checkpoint);
      Smallest& best = out[key_of(checkpoint, recording.dtype())];
      if (!best.recording || elements < best.elements) best = {recording, i, elements};
    }
  }
  return out;
}

constexpr int kNames = 28;  // columns
constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

int print_support(const Selection& selection, const std::string& device_names, const Step& step) {
  const auto devices = open_devices(device_names, "", 0);
  const auto oracle = open_device("oracle");
  const std::map<std::string, Smallest> smallest = smallest_checkpoints(selection);
  std::cout << std::left << std::setw(kNames) << "block";
  for (const auto& device : devices) {
    for (const DType dtype : kDTypes) {
      std::cout << std::setw(16) << text(device->name(), ' ', name_of(dtype));
    }
  }
  std::cout << "\n";
  const auto status = [&](const Smallest& found, Device& device, DType dtype) {
    ReplayOptions options;
    options.dtype = dtype;
    Replayer replayer(*found.recording, device, *oracle, options);
    return replayer.run(found.recording->checkpoints()[found.index]).status;
  };
  const auto print_row = [&](const std::string& name, bool backward) {
    std::cout << std::left << std::setw(kNames) << name;
    for (const auto& device : devices) {
      step(text(name, " on ", device->name()));
      for (const DType dtype : kDTypes) {
        const auto found = smallest.find(backward ? text(name, ' ', name_of(dtype)) : name);
        const bool is_there = found != smallest.end();
        std::cout << std::setw(16)
                  << (is_there ? name_of(status(found->second, *device, dtype)) : "no recording");
      }
    }
    std::cout << "\n";
  };
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    if (selection.wants(entry.name)) print_row(std::string(entry.name), false);
  }
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    const std::string name = text(entry.name, ".backward");
    const auto is_recorded = [&](DType it) {
      return smallest.contains(text(name, ' ', name_of(it)));
    };
    if (std::any_of(std::begin(kDTypes), std::end(kDTypes), is_recorded)) print_row(name, true);
  }
  return 0;
}

// Feature x recording: what is exercised where; a feature no recording exercises is a gap.
int print_coverage(const Selection& selection) {
  struct Seen {
    int64_t exercised = 0, blind = 0;
    std::set<std::string> recordings;
  };
  std::map<std::string, Seen> features;
  for (const auto& folder : selected_recordings(selection)) {
    const Recording recording = Recording::open(folder);
    for (size_t i : selected_checkpoints(selection, recording)) {
      const Checkpoint& checkpoint = recording.checkpoints()[i];
      const Features found = features_of(recording, checkpoint);
      for (const std::string& name : found.exercised) {
        Seen& seen = features[checkpoint.block + ": " + name];
        ++seen.exercised;
        seen.recordings.insert(recording.name());
      }
      for (const std::string& name : found.blind) ++features[checkpoint.block + ": " + name].blind;
    }
  }
  bool gap = false;
  for (const auto& [name, seen] : features) {
    gap = gap || seen.exercised == 0;
    std::cout << std::left << std::setw(44) << terminal_text(name) << std::right << std::setw(6)
              << seen.exercised << " see it, " << std::setw(5) << seen.blind << " blind";
    std::string where = seen.exercised ? "   in " : "   NO RECORDING SEES IT";
    size_t listed = 0;
    for (const std::string& recording : seen.recordings) {
      if (++listed > 3) break;
      where += (listed > 1 ? ", " : "") + terminal_text(recording);
    }
    if (seen.recordings.size() > 3) where += text(", and ", seen.recordings.size() - 3, " more");
    std::cout << where << "\n";
  }
  return gap ? exit_code(Status::blind) : 0;
}

// Implementation x dtype: how many checkpoints ran it; one that none ran is a gap.
int print_implementations(const Selection& selection, const std::string& device_names,
                          const Step& step) {
  const auto devices = open_devices(device_names, "", 0);
  const auto oracle = open_device("oracle");
  std::vector<SelectedRecording> selected;
  for (const auto& folder : selected_recordings(selection)) {
    Recording recording = Recording::open(folder);
    std::vector<size_t> checkpoints = selected_checkpoints(selection, recording);
    selected.push_back({std::move(recording), std::move(checkpoints)});
  }
  bool complete = true;
  for (const auto& device : devices) {
    const bool every_op =
        selection.blocks.empty() && selection.suites.empty() && selection.checkpoint.empty();
    const ImplCoverage coverage = impl_coverage(selected, *device, *oracle, every_op, step);
    complete = complete && coverage.complete();
    std::cout << device->name() << ": " << device->describe() << "\n" << to_text(coverage);
  }
  return complete ? 0 : exit_code(Status::fail);
}

}  // namespace

Action add_support(CLI::App& app) {
  auto selection = std::make_shared<Selection>();
  auto devices = std::make_shared<std::string>("auto");
  auto coverage = std::make_shared<bool>(false);
  auto impl = std::make_shared<bool>(false);
  auto ops = std::make_shared<bool>(false);
  add_selection(app, selection);
  app.add_option("--device", *devices, "as for verifying")->capture_default_str();
  app.add_flag("--coverage", *coverage,
               "feature x recording instead; exits 8 when no recording sees a feature");
  app.add_flag(
      "--impl", *impl,
      "the implementations compiled into each device instead, with the number of "
      "checkpoints that run them; exits 1 when one is run by none or fails; with --block or "
      "--checkpoint only those of ops that these run");
  app.add_flag("--ops", *ops,
               "the ops instead: dtypes on each device, and the largest error of float32 in units "
               "of the last place over a sample of all values; exits 1 when one is larger than the "
               "op's formula allows");
  auto worker = std::make_shared<WorkerOptions>();
  add_worker_options(app, *worker);
  return [selection, devices, coverage, impl, ops, worker] {
    require_known_blocks(*selection);
    if (*coverage && !*impl) return print_coverage(*selection);
    return run_isolated("support", *worker, [&](const Step& step) {
      step("opening " + *devices);
      if (*ops) return print_op_support(*devices, step);
      return (*impl ? print_implementations : print_support)(*selection, *devices, step);
    });
  };
}

}  // namespace plumb::harness
