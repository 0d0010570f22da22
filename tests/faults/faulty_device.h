// A device that gets chosen ops wrong on purpose, around any device that gets them right. Tensors
// and their memory belong to the inner device; only Device::ops() is another.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kernels/device.h"
#include "kernels/ops.h"

namespace plumb::testing {

// What a wrong op knows about its call.
struct Call {
  Ops& ops;      // the inner device's, which are right
  Arena& arena;  // scratch of the faulty device, poisoned by whoever runs the block
  int index;     // calls of the same op so far in this run of the block, from 0
  std::map<std::string, Tensor>&
      kept;  // what earlier calls of this run left; the tensors are their own
};

// The wrong version of each op; an empty function means the op is right. Arguments as in
// kernels/ops.h.
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

 protected:
  void do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                    double scale) override;
  void do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const RmsNormParams& params) override;
  void do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) override;
  void do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                 const Tensor& bias) override;
  void do_activation(const Tensor& out, const Tensor& x, Activation function) override;
  void do_add(const Tensor& out, const Tensor& a, const Tensor& b) override;
  void do_mul(const Tensor& out, const Tensor& a, const Tensor& b) override;
  void do_scale(const Tensor& out, const Tensor& x, double factor, ScaleOperation) override;
  void do_softmax(const Tensor& out, const Tensor& x) override;
  void do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) override;
  void do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) override;
  void do_repeat_heads(const Tensor& out, const Tensor& x) override;
  void do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                       const Tensor& inv_freq, double attention_scaling) override;
  void do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                 RotaryStyle style) override;
  void do_causal_mask(const Tensor& out, const AttentionMask& mask) override;
  void do_copy(const Tensor& out, const Tensor& x) override;
  void do_cast(const Tensor& out, const Tensor& x) override;
  void do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) override;
  void do_div(const Tensor& out, const Tensor& a, const Tensor& b) override;
  void do_add_scalar(const Tensor& out, const Tensor& x, double value) override;
  void do_transpose(const Tensor& out, const Tensor& x) override;
  void do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) override;
  void do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) override;
  void do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                        const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                        std::optional<Activation> function) override;
  void do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                   const SsdParams& params) override;
  void do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                         const Tensor& weight, const GatedRmsNormParams& params) override;
  void do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                           Activation function) override;
  void do_softcap(const Tensor& out, const Tensor& x, double cap) override;
  void do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                       const Tensor& residual, const Tensor& weight,
                       const RmsNormParams& params) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;

 private:
  // The hook if there is one, else the inner device's op.
  template <class Hook, class Right, class... Arguments>
  void call(OpId op, const Hook& hook, Right right, const Arguments&... arguments);

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
  void fill(const Tensor& t, uint8_t byte) override { inner_.fill(t, byte); }
  void synchronize() override;
  FaultyOps& ops() override { return ops_; }

 private:
  Device& inner_;
  FaultyOps ops_;
  int allocations_left_ = -1;
  bool synchronize_fails_ = false, lost_ = false;
};

}  // namespace plumb::testing
