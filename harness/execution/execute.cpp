#include "harness/execution/execute.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "blocks/backward.h"
#include "kernels/core/error.h"
#include "kernels/plugin/plugin_device.h"

namespace plumb::harness {
namespace {

// What transformers computes in float32 whatever the model's dtype: a state space's states, and
// its output for a sequence.
bool stays_f32(const Checkpoint& checkpoint, const std::string& name) {
  const std::string_view forward = forward_of(checkpoint.block);
  if (!forward.empty()) return false;  // gradients, in the dtype of the recorded run alone
  if (checkpoint.block == "ssd_scan") {
    return name.starts_with("state_") ||
           (name == "y" && checkpoint.params.string("form") == "chunk");
  }
  return name == "inv_freq" || name.starts_with("ssm_") || checkpoint.block == "rotary_frequencies";
}

// In a 16-bit model what was recorded in float32 is meant to be.
DType run_dtype(const Checkpoint& checkpoint, const std::string& name, DType recorded,
                DType of_model, DType dtype) {
  if (!is_floating(recorded) || checkpoint.block == "causal_mask") return recorded;
  const bool wide = size_of(recorded) > size_of(of_model) || stays_f32(checkpoint, name);
  if (wide) return dtype == DType::f64 ? DType::f64 : recorded;
  return dtype;
}

// Codes of 8 bits mean nothing in another dtype. Scales have one of their own; who has them is run
// in the recorded one, or in float64.
DType weight_dtype(const Checkpoint& checkpoint, DType recorded, DType dtype) {
  const bool as_recorded = has_quantised_weights(checkpoint) && dtype != DType::f64;
  return is_floating(recorded) && size_of(recorded) > 1 && !as_recorded ? dtype : recorded;
}

std::vector<OutputSpec> output_specs(const Recording& recording, const Checkpoint& checkpoint,
                                     DType dtype) {
  std::vector<OutputSpec> out;
  for (const auto& [name, ref] : checkpoint.outputs) {
    const DType recorded = recording.tensor_info(ref.tensor).dtype;
    out.push_back({name, run_dtype(checkpoint, name, recorded, recording.dtype(), dtype),
                   recording.output_shape(ref)});
  }
  return out;
}

Tensor taken(Device& device, const std::string& name, const Tensor& tensor,
             const Execution& execution, const Execution* before) {
  const auto sum = execution.sums.find(name);
  const bool same = before && sum != execution.sums.end() && before->sums.contains(name) &&
                    before->sums.at(name) == sum->second;
  if (same) return before->outputs.at(name);
  const Tensor host = host_tensor(tensor.dtype(), tensor.shape());
  device.download(host.raw(), tensor);
  return host;
}

void add_once(std::vector<std::string>& to, std::string word) {
  if (std::find(to.begin(), to.end(), word) == to.end()) to.push_back(std::move(word));
}

}  // namespace

HostOperands read_operands(const Recording& recording, const Checkpoint& checkpoint, DType dtype) {
  HostOperands out;
  for (const auto& [name, ref] : checkpoint.inputs) {
    const Tensor host = recording.read(ref.tensor);
    const DType to = run_dtype(checkpoint, name, host.dtype(), recording.dtype(), dtype);
    out.inputs[name] = name == "mask" ? converted_mask(host, to) : converted(host, to);
  }
  for (const auto& [name, key] : checkpoint.weights) {
    const Tensor host = recording.read(key);
    out.weights[name] = converted(host, weight_dtype(checkpoint, host.dtype(), dtype));
  }
  out.outputs = output_specs(recording, checkpoint, dtype);
  return out;
}

HostOperands blank_operands(const Recording& recording, const Checkpoint& checkpoint, DType dtype) {
  HostOperands out;
  const auto blank = [&](const std::string& key, DType to) {
    const Tensor zeros = host_tensor(to, recording.tensor_info(key).shape);
    std::memset(zeros.raw(), 0, static_cast<size_t>(zeros.bytes()));
    return zeros;
  };
  for (const auto& [name, ref] : checkpoint.inputs) {
    const DType recorded = recording.tensor_info(ref.tensor).dtype;
    out.inputs[name] =
        blank(ref.tensor, run_dtype(checkpoint, name, recorded, recording.dtype(), dtype));
  }
  for (const auto& [name, key] : checkpoint.weights) {
    out.weights[name] =
        blank(key, weight_dtype(checkpoint, recording.tensor_info(key).dtype, dtype));
  }
  out.outputs = output_specs(recording, checkpoint, dtype);
  return out;
}

Execution execute(const blocks::BlockEntry& block, const Checkpoint& checkpoint,
                  const HostOperands& operands, Device& device, const RunSetup& setup) {
  Placement placed(device, operands);
  return execute(block, checkpoint, placed, device, setup);
}

Execution execute(const blocks::BlockEntry& block, const Checkpoint& checkpoint, Placement& placed,
                  Device& device, const RunSetup& setup) {
  placed.poison(setup.poison);
  const blocks::Weights weights(std::make_shared<const blocks::Weights::Map>(placed.weights),
                                checkpoint.params.where());
  Ops& ops = device.ops();
  ops.set_fused(setup.fused);
  ops.arena().set_poison(setup.poison);
  const bool has_ends = ops.confine(setup.end);

  Execution out;
  out.has_ends = has_ends;
  ops.observe(&out.records);
  const auto stop = [&] { ops.observe(nullptr); };
  blocks::Context ctx{ops, setup.observer, setup.observer ? checkpoint.path : std::string()};
  checkpoint.params.rewind();
  const DeviceCounters before = device.counters().value_or(DeviceCounters{});
  const auto start = std::chrono::steady_clock::now();
  try {
    const blocks::BlockCall call{ctx, checkpoint.params, weights, placed.inputs, placed.outputs};
    if (forward_of(checkpoint.block).empty()) block.run(call);
    else out.gradients = blocks::run_backward(block, call);
    out.counters = device.counters().value_or(DeviceCounters{}) - before;
    device.synchronize();
  } catch (...) {
    stop();
    throw;
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stop();
  checkpoint.params.finish();
  weights.finish();

  for (const auto& [name, tensor] : placed.outputs) {
    if (setup.sums && tensor.bytes() >= kSummed) out.sums[name] = device.checksum(tensor);
    out.outputs[name] = taken(device, name, tensor, out, setup.before);
  }
  out.damage = placed.damage();
  return out;
}

std::vector<std::string> looser_contracts(const Ops& ops, const std::vector<OpRecord>& records) {
  std::vector<std::string> out;
  for (const OpRecord& record : records) {
    add_once(out, looser_contract(ops, record.op, record.contract.storage));
  }
  std::erase(out, "");
  return out;
}

std::vector<std::string> implementations_of(const std::vector<OpRecord>& records) {
  std::vector<std::string> out;
  for (const OpRecord& record : records) add_once(out, to_string(record.op, record.impl));
  return out;
}

}  // namespace plumb::harness
