// ObservedOps: a device's ops, each call counted and, on samples of its operands, judged.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/cost.h"
#include "harness/bench/sample.h"

namespace plumb {

// Forwards every call to the device's ops and keeps what it needs (bytes, flops), which variants
// ran and the worst verdict. A fused op is one call, also where the device composes it.
class ObservedOps final : public Ops {
 public:
  ObservedOps(Device& device, Device& oracle);

  const Cost& cost() const { return cost_; }
  Status status() const { return status_; }              // of all calls so far
  const std::string& reason() const { return reason_; }  // "" for pass
  const std::vector<OpRecord>& records() const { return all_records_; }

  Contract contract(OpId op, DType storage) const override { return inner_.contract(op, storage); }
  bool overrides(OpId op) const override { return is_fused(op); }

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
  void do_copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b,
                    const Tensor& b) override;
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
  using Tensors = std::vector<Tensor>;
  using Run = std::function<void(Ops&, const Tensors& outputs, const Tensors& inputs)>;

  // Of one sample, at most.
  static constexpr int64_t kRows = 16, kHeads = 4, kColumns = 64;
  static Picks pick_rows(const Tensor& t);
  static Picks pick_heads(const Tensor& t);

  // The device's op on all of the operands; its records are in records_ afterwards.
  void forward(const Cost& cost, const std::function<void(Ops&)>& call);
  void judge(const SampledOp& sampled);
  // An op whose rows (and heads) do not know of each other: tensors of rank 2 and more are sampled
  // along the axes before the last, vectors kept whole.
  void row_op(OpId op, const Tensors& outputs, const Tensors& inputs, const Run& run,
              BitRule bits = BitRule::leaf);
  Tensors gathered(const Tensors& tensors, const Picks& rows, const Picks& heads);

  Ops& inner_;
  Device& oracle_;
  Cost cost_;
  Status status_ = Status::pass;
  std::string reason_;
  std::vector<OpRecord> records_, all_records_;
};

}  // namespace plumb
