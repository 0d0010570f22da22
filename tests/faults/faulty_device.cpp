#include "tests/faults/faulty_device.h"

#include <tuple>

#include "kernels/core/error.h"

namespace plumb::harness::testing {

FaultyOps::FaultyOps(Device& inner, Hooks hooks)
    : Ops(inner), inner_(inner.ops()), hooks_(std::move(hooks)) {}

void FaultyOps::end_run() {
  calls_ = {};
  kept_.clear();
}

Contract FaultyOps::contract(OpId op, DType storage) const { return inner_.contract(op, storage); }

bool FaultyOps::overrides(OpId op) const {
  if (hooks_.op == op) return is_fused(op);
  switch (op) {
    case OpId::gated_activation: return hooks_.gated_activation != nullptr;
    case OpId::softcap: return hooks_.softcap != nullptr;
    case OpId::add_rms_norm: return hooks_.add_rms_norm != nullptr;
    case OpId::sdpa: return hooks_.sdpa != nullptr;
    default: return false;
  }
}

template <class... Arguments>
void FaultyOps::run(const OpCall& op_call, const Hooks::Hook<Arguments...>& hook) {
  const int index = calls_[static_cast<size_t>(op_call.op)]++;
  if (!hook) return op_call.on(inner_);
  ++hits_;
  Call call{inner_, arena(), index, kept_};
  auto argument = op_call.arguments.begin();
  const std::tuple<Arguments...> arguments{std::get<Arguments>(*argument++)...};
  std::apply([&](const Arguments&... a) { hook(call, a...); }, arguments);
}

void FaultyOps::do_call(const OpCall& call) {
  if (hooks_.op == call.op) {
    ++hits_;
    Call wrong{inner_, arena(), calls_[static_cast<size_t>(call.op)]++, kept_};
    for (const OpCall& one : call.singles()) hooks_.whole(wrong, one);
    return;
  }
  switch (call.op) {
    case OpId::embedding: return run(call, hooks_.embedding);
    case OpId::rms_norm: return run(call, hooks_.rms_norm);
    case OpId::layer_norm: return run(call, hooks_.layer_norm);
    case OpId::linear: return run(call, hooks_.linear);
    case OpId::activation: return run(call, hooks_.activation);
    case OpId::add: return run(call, hooks_.add);
    case OpId::mul: return run(call, hooks_.mul);
    case OpId::scale: return run(call, hooks_.scale);
    case OpId::softmax: return run(call, hooks_.softmax);
    case OpId::matmul: return run(call, hooks_.matmul);
    case OpId::masked_add: return run(call, hooks_.masked_add);
    case OpId::repeat_heads: return run(call, hooks_.repeat_heads);
    case OpId::rotary_table: return run(call, hooks_.rotary_table);
    case OpId::rotary: return run(call, hooks_.rotary);
    case OpId::causal_mask: return run(call, hooks_.causal_mask);
    case OpId::copy:
      for (const OpCall& one : call.singles()) run(one, hooks_.copy);
      return;
    case OpId::cast: return run(call, hooks_.cast);
    case OpId::mask_rows: return run(call, hooks_.mask_rows);
    case OpId::div: return run(call, hooks_.div);
    case OpId::add_scalar: return run(call, hooks_.add_scalar);
    case OpId::transpose: return run(call, hooks_.transpose);
    case OpId::mask_fill: return run(call, hooks_.mask_fill);
    case OpId::position_ids: return run(call, hooks_.position_ids);
    case OpId::causal_conv1d: return run(call, hooks_.causal_conv1d);
    case OpId::ssd_scan: return run(call, hooks_.ssd_scan);
    case OpId::gated_rms_norm: return run(call, hooks_.gated_rms_norm);
    case OpId::gated_activation: return run(call, hooks_.gated_activation);
    case OpId::softcap: return run(call, hooks_.softcap);
    case OpId::add_rms_norm: return run(call, hooks_.add_rms_norm);
    case OpId::sdpa: return run(call, hooks_.sdpa);
    default: return call.on(inner_);  // an op in which no fault is planted
  }
}

Tensor FaultyDevice::allocate(DType dtype, const Shape& shape) {
  ops_.end_run();  // operands are placed before a run: what was counted and kept is the last one's
  if (allocations_left_ >= 0 && allocations_left_-- == 0) {
    throw DeviceError(text("[allocate] out of device memory for ", name_of(dtype), ' ', shape));
  }
  return inner_.allocate(dtype, shape);
}

// Runs of a checkpoint share their operands; before each its outputs are poisoned.
void FaultyDevice::fill(const Tensor& t, uint8_t byte) {
  ops_.end_run();
  inner_.fill(t, byte);
}

void FaultyDevice::synchronize() {
  if (synchronize_fails_ || lost_) {
    synchronize_fails_ = false;
    throw DeviceError("[synchronize] the device was lost");
  }
  inner_.synchronize();
}

}  // namespace plumb::harness::testing
