#include "tests/faults/faulty_device.h"

#include "kernels/error.h"

namespace plumb::testing {

FaultyOps::FaultyOps(Device& inner, Hooks hooks)
    : Ops(inner), inner_(inner.ops()), hooks_(std::move(hooks)) {}

void FaultyOps::end_run() {
  calls_ = {};
  kept_.clear();
}

Contract FaultyOps::contract(OpId op, DType storage) const { return inner_.contract(op, storage); }

bool FaultyOps::overrides(OpId op) const {
  switch (op) {
    case OpId::gated_activation: return hooks_.gated_activation != nullptr;
    case OpId::softcap: return hooks_.softcap != nullptr;
    case OpId::add_rms_norm: return hooks_.add_rms_norm != nullptr;
    case OpId::sdpa: return hooks_.sdpa != nullptr;
    default: return false;
  }
}

template <class Hook, class Right, class... Arguments>
void FaultyOps::call(OpId op, const Hook& hook, Right right, const Arguments&... arguments) {
  const int index = calls_[static_cast<size_t>(op)]++;
  if (!hook) return (inner_.*right)(arguments...);
  ++hits_;
  Call call{inner_, arena(), index, kept_};
  hook(call, arguments...);
}

void FaultyOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                             double scale) {
  call(OpId::embedding, hooks_.embedding, &Ops::embedding, out, ids, weight, scale);
}

void FaultyOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const RmsNormParams& params) {
  call(OpId::rms_norm, hooks_.rms_norm, &Ops::rms_norm, out, x, weight, params);
}

void FaultyOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, double eps) {
  call(OpId::layer_norm, hooks_.layer_norm, &Ops::layer_norm, out, x, weight, bias, eps);
}

void FaultyOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias) {
  call(OpId::linear, hooks_.linear, &Ops::linear, out, x, weight, bias);
}

void FaultyOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  call(OpId::activation, hooks_.activation, &Ops::activation, out, x, function);
}

void FaultyOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  call(OpId::add, hooks_.add, &Ops::add, out, a, b);
}

void FaultyOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  call(OpId::mul, hooks_.mul, &Ops::mul, out, a, b);
}

void FaultyOps::do_scale(const Tensor& out, const Tensor& x, double factor,
                         ScaleOperation operation) {
  call(OpId::scale, hooks_.scale, &Ops::scale, out, x, factor, operation);
}

void FaultyOps::do_softmax(const Tensor& out, const Tensor& x) {
  call(OpId::softmax, hooks_.softmax, &Ops::softmax, out, x);
}

void FaultyOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  call(OpId::matmul, hooks_.matmul, &Ops::matmul, out, a, b, transpose_b);
}

void FaultyOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  call(OpId::masked_add, hooks_.masked_add, &Ops::masked_add, out, x, mask);
}

void FaultyOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  call(OpId::repeat_heads, hooks_.repeat_heads, &Ops::repeat_heads, out, x);
}

void FaultyOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                                const Tensor& inv_freq, double attention_scaling) {
  call(OpId::rotary_table, hooks_.rotary_table, &Ops::rotary_table, cos, sin, positions, inv_freq,
       attention_scaling);
}

void FaultyOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                          RotaryStyle style) {
  call(OpId::rotary, hooks_.rotary, &Ops::rotary, out, x, cos, sin, style);
}

void FaultyOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  call(OpId::causal_mask, hooks_.causal_mask, &Ops::causal_mask, out, mask);
}

void FaultyOps::do_copy(const Tensor& out, const Tensor& x) {
  call(OpId::copy, hooks_.copy, &Ops::copy, out, x);
}

void FaultyOps::do_cast(const Tensor& out, const Tensor& x) {
  call(OpId::cast, hooks_.cast, &Ops::cast, out, x);
}

void FaultyOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  call(OpId::mask_rows, hooks_.mask_rows, &Ops::mask_rows, out, x, valid);
}

void FaultyOps::do_div(const Tensor& out, const Tensor& a, const Tensor& b) {
  call(OpId::div, hooks_.div, &Ops::div, out, a, b);
}

void FaultyOps::do_add_scalar(const Tensor& out, const Tensor& x, double value) {
  call(OpId::add_scalar, hooks_.add_scalar, &Ops::add_scalar, out, x, value);
}

void FaultyOps::do_transpose(const Tensor& out, const Tensor& x) {
  call(OpId::transpose, hooks_.transpose, &Ops::transpose, out, x);
}

void FaultyOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  call(OpId::mask_fill, hooks_.mask_fill, &Ops::mask_fill, out, x, mask, value);
}

void FaultyOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  call(OpId::position_ids, hooks_.position_ids, &Ops::position_ids, out, valid, offset);
}

void FaultyOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                 const Tensor& weight, const Tensor& bias,
                                 const Tensor& state_before, std::optional<Activation> function) {
  call(OpId::causal_conv1d, hooks_.causal_conv1d, &Ops::causal_conv1d, out, state_after, x, weight,
       bias, state_before, function);
}

void FaultyOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                            const SsdParams& params) {
  call(OpId::ssd_scan, hooks_.ssd_scan, &Ops::ssd_scan, y, state_after, in, params);
}

void FaultyOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                  const Tensor& weight, const GatedRmsNormParams& params) {
  call(OpId::gated_rms_norm, hooks_.gated_rms_norm, &Ops::gated_rms_norm, out, x, gate, weight,
       params);
}

void FaultyOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                    Activation function) {
  call(OpId::gated_activation, hooks_.gated_activation, &Ops::gated_activation, out, gate, up,
       function);
}

void FaultyOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  call(OpId::softcap, hooks_.softcap, &Ops::softcap, out, x, cap);
}

void FaultyOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                                const Tensor& residual, const Tensor& weight,
                                const RmsNormParams& params) {
  call(OpId::add_rms_norm, hooks_.add_rms_norm, &Ops::add_rms_norm, sum, out, x, residual, weight,
       params);
}

void FaultyOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, const SdpaParams& params) {
  call(OpId::sdpa, hooks_.sdpa, &Ops::sdpa, out, q, k, v, mask, params);
}

Tensor FaultyDevice::allocate(DType dtype, const Shape& shape) {
  ops_.end_run();  // operands are placed before a run: what was counted and kept is the last one's
  if (allocations_left_ >= 0 && allocations_left_-- == 0) {
    throw DeviceError(text("[allocate] out of device memory for ", name_of(dtype), ' ', shape));
  }
  return inner_.allocate(dtype, shape);
}

void FaultyDevice::synchronize() {
  if (synchronize_fails_ || lost_) {
    synchronize_fails_ = false;
    throw DeviceError("[synchronize] the device was lost");
  }
  inner_.synchronize();
}

}  // namespace plumb::testing
