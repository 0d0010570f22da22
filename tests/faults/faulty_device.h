// A device that gets chosen ops wrong on purpose, around any device that gets them right. Tensors
// and their memory belong to the inner device; only Device::ops() is another.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "kernels/ops/ops.h"

namespace plumb::harness::testing {

// What a wrong op knows about its call.
struct Call {
  Ops& ops;      // the inner device's, which are right
  Arena& arena;  // scratch of the faulty device, poisoned by whoever runs the block
  int index;     // calls of the same op so far in this run of the block, from 0
  std::map<std::string, Tensor>&
      kept;  // what earlier calls of this run left; the tensors are their own
};

// The wrong version of each op; an empty function means the op is right. Arguments as in
// kernels/ops/ops.h.
struct Hooks {
  template <class... Arguments>
  using Hook = std::function<void(Call&, const Arguments&...)>;
  using T = Tensor;

  Hook<T, T, T, double> embedding = {};
  Hook<T, T, T, RmsNormParams> rms_norm = {};
  Hook<T, T, T, T, double> layer_norm = {};
  Hook<T, T, T, T> linear = {};
  Hook<T, T, Activation> activation = {};
  Hook<T, T, T> add = {}, mul = {};
  Hook<T, T, double, ScaleOperation> scale = {};
  Hook<T, T> softmax = {};
  Hook<T, T, T, bool> matmul = {};
  Hook<T, T, T> masked_add = {};
  Hook<T, T> repeat_heads = {};
  Hook<T, T, T, T, double> rotary_table = {};
  Hook<T, T, T, T, RotaryStyle> rotary = {};
  Hook<T, AttentionMask> causal_mask = {};
  Hook<T, T> copy = {}, cast = {};
  Hook<T, T, T> mask_rows = {}, div = {};
  Hook<T, T, double> add_scalar = {};
  Hook<T, T> transpose = {};
  Hook<T, T, T, double> mask_fill = {};
  Hook<T, T, int64_t> position_ids = {};
  Hook<T, T, T, T, T, T, std::optional<Activation>> causal_conv1d = {};
  Hook<T, T, SsdInputs, SsdParams> ssd_scan = {};
  Hook<T, T, T, T, GatedRmsNormParams> gated_rms_norm = {};
  Hook<T, T, T, Activation> gated_activation = {};
  Hook<T, T, double> softcap = {};
  Hook<T, T, T, T, T, RmsNormParams> add_rms_norm = {};
  Hook<T, T, T, T, AttentionMask, SdpaParams> sdpa = {};

  // Of every call of one op, whatever its arguments.
  std::optional<OpId> op = {};
  Hook<OpCall> whole = {};
};

class FaultyOps final : public Ops {
 public:
  FaultyOps(Device& inner, Hooks hooks);

  // Calls of hooked ops since construction.
  int64_t hits() const { return hits_; }
  // Forgets what the hooks counted and kept: a run of a block is over.
  void end_run();

  Contract contract(OpId op, DType storage) const override;
  // A fused op runs composed, on this object, unless it is itself the one that is wrong: forwarding
  // it would step around a faulty primitive.
  bool overrides(OpId op) const override;

 private:
  void do_call(const OpCall& call) override;
  // The hook of the call's op if there is one, else the inner device's op.
  template <class... Arguments>
  void run(const OpCall& call, const Hooks::Hook<Arguments...>& hook);

  Ops& inner_;
  const Hooks hooks_;
  std::array<int, kOpCount> calls_{};
  std::map<std::string, Tensor> kept_;
  int64_t hits_ = 0;
};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(Device& inner, Hooks hooks) : inner_(inner), ops_(inner, std::move(hooks)) {}

  // The allocation that many calls from now throws DeviceError, and the next synchronisation, once.
  void fail_allocation(int calls_from_now) { allocations_left_ = calls_from_now; }
  void fail_synchronize() { synchronize_fails_ = true; }
  // Every synchronisation from now on throws DeviceError.
  void lose() { lost_ = true; }

  std::string name() const override { return inner_.name(); }
  std::string describe() const override { return "faulty " + inner_.describe(); }
  Tensor allocate(DType dtype, const Shape& shape) override;
  void upload(const Tensor& to, const void* from) override { inner_.upload(to, from); }
  void download(void* to, const Tensor& from) override { inner_.download(to, from); }
  void fill(const Tensor& t, uint8_t byte) override;
  void synchronize() override;
  FaultyOps& ops() override { return ops_; }

 private:
  Device& inner_;
  FaultyOps ops_;
  int allocations_left_ = -1;
  bool synchronize_fails_ = false, lost_ = false;
};

}  // namespace plumb::harness::testing
