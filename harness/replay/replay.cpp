#include "harness/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "harness/io/escape.h"
#include "harness/io/sha256.h"
#include "harness/replay/device_errors.h"
#include "harness/replay/explain.h"
#include "harness/replay/features.h"
#include "harness/replay/margins.h"
#include "kernels/error.h"
#include "kernels/plugin_device.h"

namespace plumb::harness {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.data<char>(), a.data<char>() + a.bytes(), b.data<char>());
}

std::string digest(const std::map<std::string, Tensor>& outputs) {
  std::string hashes;
  for (const auto& [name, t] : outputs) hashes += name + sha256_hex(t.raw(), t.bytes());
  return sha256_hex(hashes.data(), static_cast<int64_t>(hashes.size()));
}

// The recording states the reference's error for people; a figure that its own tensors contradict
// means that reference, delta or figure were tampered with.
void require_recorded_error(const Checkpoint& checkpoint, const OutputVerdict& output) {
  const double stated = checkpoint.outputs.at(output.name).error, computed = output.recorded_error;
  const bool equal = stated == computed || (std::isnan(stated) && std::isnan(computed)) ||
                     std::fabs(stated - computed) <= 1e-6 * std::fabs(computed);
  if (equal) return;
  throw BadInput(text(checkpoint.params.where(), ": outputs.", output.name, ".error is ", stated,
                      ", reference and delta give ", computed, "; record it again"));
}

// What memory is filled with before anything is written to it.
constexpr uint8_t kNaNs = 0xff, kZeros = 0x00;

// Of a run that differs from one on NaN. Only a third, on NaN as the first (`repeats`: it gives the
// same bytes), tells a read of uninitialised memory from chance.
std::string cause_of_difference(uint8_t memory, const std::function<bool()>& repeats) {
  if (memory == kNaNs) return " (the same)";
  if (repeats()) return " (memory filled with zeros: an uninitialised read)";
  return " (zeros), and between runs with equal memory: not deterministic";
}

// Variables of the environment that results depend on, as they are set: "PLUMB_ISA=avx2 ".
std::string environment_words() {
  std::string out;
  for (const char* name : {"PLUMB_ISA", "PLUMB_EMU_SEED"}) {
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

Replayer::Replayer(const Recording& recording, Device& device, Device& oracle,
                   ReplayOptions options)
    : recording_(recording),
      device_(device),
      oracle_(oracle),
      options_(std::move(options)),
      dtype_(dtype_of_run(recording, device.name(), options_)) {
  Ops& ops = device_.ops();
  ops.force(ops.choice().finds(options_.impl) ? options_.impl : "");
}

Replayed Replayer::run_and_keep(const Checkpoint& checkpoint) {
  Replayed replayed{result_to_be(recording_, checkpoint, device_.name(), options_), {}};
  status_of_exception(replayed.result, checkpoint.params.where(),
                      [&] { replay(checkpoint, replayed); });
  return replayed;
}

void Replayer::replay(const Checkpoint& checkpoint, Replayed& replayed) {
  CheckpointResult& result = replayed.result;
  const blocks::BlockEntry* block = blocks::find_block(checkpoint.block);
  if (!block) throw Unsupported(text("no native block \"", checkpoint.block, "\""));
  if (!checkpoint.reserved.empty()) {
    throw Unsupported(text("uses \"", checkpoint.reserved.front(),
                           "\", which this version of the harness cannot read"));
  }
  const Features features = features_of(recording_, checkpoint, dtype_);
  result.features = features.exercised;
  result.blind_to = features.blind;

  Verdict verdict = verify(*block, checkpoint, options_.fuse ? OpSet().set() : OpSet(), &replayed);
  result.status = worse(result.status, verdict.status);
  if (result.status == verdict.status) result.reason = verdict.reason;
  result.outputs = std::move(verdict.outputs);
  if (result.status == Status::fail && options_.explain) explain(*block, checkpoint, result);
}

Verdict Replayer::verify(const blocks::BlockEntry& block, const Checkpoint& checkpoint, OpSet fused,
                         Replayed* replayed) {
  const HostOperands operands = read_operands(recording_, checkpoint, dtype_);
  const auto run_on = [&](uint8_t memory) {
    return execute(block, checkpoint, operands, device_, {fused, memory});
  };
  const Execution first = run_on(kNaNs);
  std::string damage = first.damage;
  std::string unstable;
  const int runs = std::max(options_.repeat, 2);
  for (int k = 1; k < runs; ++k) {
    const uint8_t memory = k % 2 ? kZeros : kNaNs;
    const Execution other = run_on(memory);
    if (damage.empty()) damage = other.damage;
    const auto differs = std::find_if(first.outputs.begin(), first.outputs.end(), [&](auto& it) {
      return !same_bytes(it.second, other.outputs.at(it.first));
    });
    if (!unstable.empty() || differs == first.outputs.end()) continue;
    const std::string& name = differs->first;
    const Tensor& y = differs->second;
    unstable = text(
        "output \"", name, "\" differs between run 1 (memory filled with NaN) and run ", k + 1,
        cause_of_difference(memory, [&] { return same_bytes(y, run_on(kNaNs).outputs.at(name)); }));
  }
  std::vector<OutputVerdict> outputs;
  const std::vector<OutputCase> all = cases(block, checkpoint, operands, first);
  for (const OutputCase& output : all) {
    outputs.push_back(judge(output));
    if (replayed) note_sample(output, replayed->result);
    if (dtype_ == recording_.dtype()) require_recorded_error(checkpoint, outputs.back());
  }
  Verdict verdict = combine(std::move(outputs));
  if (!unstable.empty()) {
    verdict.status = worse(verdict.status, Status::nondeterministic);
    if (verdict.status == Status::nondeterministic) verdict.reason = unstable;
  }
  if (!damage.empty()) {
    verdict.status = worse(verdict.status, Status::fail);
    verdict.reason = damage;
  }
  if (replayed) {
    CheckpointResult& result = replayed->result;
    result.contract = to_string(facts_of(first.records, dtype_).contract);
    result.looser = looser_contracts(device_.ops(), first.records);
    result.impl = implementations_of(first.records);
    result.fused = std::any_of(first.records.begin(), first.records.end(),
                               [](const OpRecord& r) { return is_fused(r.op); });
    result.determinism = unstable.empty() ? Determinism::d0 : Determinism::d1;
    result.runs = runs;
    result.refereed =
        is_refereed(checkpoint, operands, recording_.dtype(), dtype_, options_.referee);
    if (!result.refereed) {
      result.details.push_back(
          "judged by what the recording says alone; --referee native runs our float64 block, too");
    }
    if (options_.margins) {
      result.margins = margins_of(recording_, checkpoint, block, operands,
                                  facts_of(first.records, dtype_), all, oracle_);
      note_blindness(result);
    }
    result.seconds = first.seconds;
    result.output_sha256 = digest(first.outputs);
    replayed->outputs = first.outputs;
  }
  return verdict;
}

std::vector<OutputCase> Replayer::cases(const blocks::BlockEntry& block,
                                        const Checkpoint& checkpoint, const HostOperands& operands,
                                        const Execution& execution) {
  return output_cases(
      recording_, checkpoint, block, operands, execution.outputs,
      facts_of(execution.records, dtype_), oracle_,
      is_refereed(checkpoint, operands, recording_.dtype(), dtype_, options_.referee));
}

void Replayer::explain(const blocks::BlockEntry& block, const Checkpoint& checkpoint,
                       CheckpointResult& result) {
  if (result.fused && options_.fuse) {
    const Verdict composed = verify(block, checkpoint, OpSet(), nullptr);
    const bool passes = composed.status == Status::pass || composed.status == Status::blind;
    result.details.push_back(text("composed (--no-fuse): ", name_of(composed.status),
                                  passes ? "  -> look at a fused op, not a primitive"
                                         : "  -> look at a primitive, not a fusion"));
  }
  const HostOperands operands = read_operands(recording_, checkpoint, dtype_);
  const Execution again = execute(block, checkpoint, operands, device_,
                                  {options_.fuse ? OpSet().set() : OpSet(), kNaNs});
  explain_failure(recording_, checkpoint, block, operands, facts_of(again.records, dtype_),
                  cases(block, checkpoint, operands, again), oracle_, result);
}

}  // namespace plumb::harness
