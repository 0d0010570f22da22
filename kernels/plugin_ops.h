// The ops of a device with plugins: each is the plugin's where one has it, else the device's own.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "kernels/plugin_library.h"

namespace plumb {

using PluginLibraries = std::vector<std::shared_ptr<const PluginLibrary>>;

class PluginOps final : public Ops {
 public:
  // `device` owns the tensors. `inner`: its own ops, null for a device that a plugin makes. No two
  // plugins may have the same op.
  PluginOps(Device& device, Ops* inner, PluginLibraries plugins);

  Contract contract(OpId op, DType storage) const override;
  // plugin_device.h
  std::string looser_contract(OpId op, DType storage) const;
  bool overrides(OpId op) const override;
  void force(const std::string& regex) override;

 protected:
  void do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                    double scale) override;
  void do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const RmsNormParams&) override;
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
                       const Tensor& residual, const Tensor& weight, const RmsNormParams&) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams&) override;

 private:
  using Tensors = std::initializer_list<Tensor>;  // in the order of kernels/plugin.h
  const PluginLibrary* plugin_for(OpId op) const;
  const PluginLibrary* plugin_that_runs(OpId op) const;  // or null: --impl leaves the inner one
  // The plugin's version of the op if it has one and --impl leaves it, else own(inner ops).
  template <class Own>
  void run(OpId op, const plumb_params& params, Tensors tensors, Own own);
  // An op that plugins cannot have.
  template <class Own>
  void forward(OpId op, Own own);
  void call(const PluginLibrary& plugin, OpId op, const plumb_params& params, Tensors tensors);

  Ops* inner_;
  std::vector<OpRecord> inner_records_;  // of the call that runs
  PluginLibraries plugins_;
};

}  // namespace plumb
