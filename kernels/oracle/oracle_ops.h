// What the ops of the oracle device share: elements as doubles, and scalar functions.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "kernels/oracle/arithmetic.h"

namespace plumb {

// The elements of a tensor in row-major order, as doubles: as they were kept, where a rounding was
// left out.
std::vector<double> values_of(const Tensor& t);
// Writes values in row-major order, each rounded to the tensor's dtype: a rounding point named as
// the op. Where the run leaves it out, later ops see the values as they are.
void put(const Tensor& t, const std::vector<double>& values, std::string_view name = "value");
// Writes values that are another tensor's: no rounding point.
void move(const Tensor& t, const std::vector<double>& values);

// f(x) as ops.h says.
double activate(double x, Activation function);
// The same composed of operations that are each rounded to storage, as some programs do.
double activate_in_parts(double x, Activation function, DType storage);
// What the error of f(x) in float32 is measured in: GELU's textbook form cancels, others do not.
double error_scale(double x, double y, Activation function);

class OracleOps final : public Ops {
 public:
  using Ops::Ops;
  Contract contract(OpId op, DType storage) const override;
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
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;
};

}  // namespace plumb
