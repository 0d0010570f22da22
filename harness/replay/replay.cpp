#include "harness/replay/replay.h"

#include <cstdlib>

#include "harness/io/escape.h"
#include "harness/replay/checkpoint_run.h"
#include "kernels/core/error.h"
#include "kernels/plugin/plugin_device.h"

namespace plumb::harness {
namespace {

// Variables of the environment that results depend on, as they are set: "PLUMB_ISA=avx2 ".
std::string environment_words() {
  std::string out;
  for (const char* name : {"PLUMB_ISA", "PLUMB_EMU_SEED", "PLUMB_ORACLE"}) {
    const char* value = std::getenv(name);
    if (value && *value) out += text(name, '=', shell_word(value), ' ');
  }
  return out;
}

// `what`: the options that select it.
std::string repeat_command(const std::string& what, const std::string& device,
                           const ReplayOptions& options) {
  std::string out = text(environment_words(), "harness --fixture ", shell_word(options.fixture),
                         ' ', what, " --device ", device);
  if (options.dtype) out += text(" --dtype ", name_of(*options.dtype));
  if (!options.fuse) out += " --no-fuse";
  if (!options.impl.empty()) out += " --impl " + shell_word(options.impl);
  if (options.repeat != ReplayOptions().repeat) out += text(" --repeat ", options.repeat);
  if (options.threads != 0) out += text(" --threads ", options.threads);
  for (const LoadedPlugin& plugin : loaded_plugins()) out += " --plugin " + shell_word(plugin.file);
  if (options.referee == RefereeRule::always) out += " --referee native";
  if (options.referee == RefereeRule::never) out += " --referee none";
  if (looser_contracts_allowed()) out += " --looser-contracts";
  return out;
}

}  // namespace

DType dtype_of_run(const Recording& recording, const std::string& device,
                   const ReplayOptions& options) {
  return options.dtype.value_or(device == "oracle" ? DType::f64 : recording.dtype());
}

namespace {

CheckpointResult result_of(const Recording& recording, const std::string& device,
                           const ReplayOptions& options) {
  CheckpointResult result;
  result.recording = recording.name();
  result.fixture = options.fixture;
  result.device = device;
  result.dtype = name_of(dtype_of_run(recording, device, options));
  result.golden_sha256 = recording.sha256();
  return result;
}

}  // namespace

CheckpointResult result_to_be(const Recording& recording, const Checkpoint& checkpoint,
                              const std::string& device, const ReplayOptions& options) {
  CheckpointResult result = result_of(recording, device, options);
  result.block = checkpoint.block;
  result.checkpoint = checkpoint.id;
  result.step = checkpoint.step;
  result.again = repeat_command("--checkpoint " + shell_word(checkpoint.id), device, options);
  if (options.margins) result.again += " --margins";
  return result;
}

CheckpointResult chain_to_be(const Recording& recording, const std::string& device,
                             const ReplayOptions& options) {
  CheckpointResult result = result_of(recording, device, options);
  result.block = "model";
  result.checkpoint = "(chain)";
  result.again = repeat_command("--mode chained", device, options);
  if (options.shadow) result.again += " --shadow";
  return result;
}

void force_impl(Device& device, const ReplayOptions& options) {
  Ops& ops = device.ops();
  ops.force(ops.choice().finds(options.impl) ? options.impl : "");
}

Replayer::Replayer(const Recording& recording, Device& device, Device& oracle,
                   ReplayOptions options)
    : recording_(recording), device_(device), oracle_(oracle), options_(std::move(options)) {
  force_impl(device_, options_);
}

Replayed Replayer::run_and_keep(const Checkpoint& checkpoint) {
  CheckpointRun run(recording_, checkpoint, device_.name(), options_);
  run.prepare();
  run.execute(device_);
  run.judge(oracle_);
  run.explain(device_, oracle_);
  return run.take();
}

}  // namespace plumb::harness
