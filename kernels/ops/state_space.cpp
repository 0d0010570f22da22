// Argument checks and dispatch of the ops of state space models.
#include <algorithm>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {

void Ops::causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                        const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                        std::optional<Activation> function) {
  const CheckedCall call =
      checked<OpId::causal_conv1d>(out, state_after, x, weight, bias, state_before);
  require(call.extent('W') > 0, "causal_conv1d", "weight has shape ", weight.shape(),
          ", expected at least one column");
  dispatch<&Ops::causal_conv1d, &DeviceOps::do_causal_conv1d>(call, out, state_after, x, weight,
                                                              bias, state_before, function);
}

void Ops::ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                   const SsdParams& params) {
  constexpr const char* kOp = "ssd_scan";
  const CheckedCall call = checked<OpId::ssd_scan>(y, state_after, in.x, in.dt, in.b, in.c,
                                                   in.a_log, in.d, in.dt_bias, in.state);
  const bool step = params.form == SsdForm::step;
  const DType wide = call.storage == DType::f64 ? DType::f64 : DType::f32;
  require_dtype(kOp, "y", y, step ? call.storage : wide);
  require(params.chunk_size > 0, kOp, "chunk_size is ", params.chunk_size, ", must be positive");
  const int64_t columns = call.extent('N');
  if (step) {
    require_step(kOp, in, params);
    dispatch<&Ops::ssd_scan, &DeviceOps::do_ssd_scan>(OpId::ssd_scan, call.storage, {columns}, y,
                                                      state_after, in, params);
  } else {
    const int64_t chunk = std::min(call.extent('T'), params.chunk_size);
    dispatch<&Ops::ssd_scan, &DeviceOps::do_ssd_scan>(OpId::ssd_scan, call.storage,
                                                      {chunk, columns}, y, state_after, in, params);
  }
}

void Ops::gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                         const Tensor& weight, const GatedRmsNormParams& params) {
  constexpr const char* kOp = "gated_rms_norm";
  const CheckedCall call = checked<OpId::gated_rms_norm>(out, x, gate, weight);
  require_dtype(kOp, "weight", weight, gate.dtype());
  require(gate.dtype() == call.storage || call.storage == DType::f32, kOp, "x is ",
          name_of(call.storage), ", gate ", name_of(gate.dtype()), ": x must be the same or f32");
  require(params.group_size > 0 && x.dim(-1) % params.group_size == 0, kOp, "group_size is ",
          params.group_size, ", must divide x's last axis of ", x.dim(-1));
  dispatch<&Ops::gated_rms_norm, &DeviceOps::do_gated_rms_norm>(
      OpId::gated_rms_norm, call.storage, {params.group_size}, out, x, gate, weight, params);
}

}  // namespace plumb
