// Argument checks and dispatch of the ops of state space models.
#include "kernels/ops/device_ops.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

// What is float32 whatever the storage dtype.
DType at_least_f32(DType storage) { return storage == DType::f64 ? DType::f64 : DType::f32; }

void require_step(const SsdInputs& in, const SsdParams& params) {
  require(in.x.dim(1) == 1, "ssd_scan", "the step form takes one token, x has ", in.x.dim(1));
  require(in.state.defined(), "ssd_scan", "the step form needs a state");
  require(!params.dt_min && !params.dt_max, "ssd_scan", "dt_min and dt_max are ",
          params.dt_min.value_or(0), " and ", params.dt_max.value_or(0),
          ", but only the chunk form clamps: leave them out");
}

}  // namespace

void Ops::cast(const Tensor& out, const Tensor& x) {
  require_placed("cast", device_, {{"x", x}, {"out", out}});
  for (const auto& [name, t] : {Named{"x", x}, Named{"out", out}}) {
    require(is_floating(t.dtype()), "cast", name, " is ", name_of(t.dtype()),
            ", expected a float dtype");
  }
  require_shape("cast", "out", out, x.shape());
  dispatch<&Ops::cast, &DeviceOps::do_cast>(OpId::cast, out.dtype(), {}, out, x);
}

void Ops::mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  const DType storage = require_floats("mask_rows", device_, {{"x", x}, {"out", out}});
  require_placed("mask_rows", device_, {{"valid", valid}});
  require_rank("mask_rows", "x", x, 3);
  require_shape("mask_rows", "out", out, x.shape());
  require_rank("mask_rows", "valid", valid, 2);
  require_dtype("mask_rows", "valid", valid, DType::boolean);
  require_shape("mask_rows", "valid", valid, {x.dim(0), x.dim(1)});
  dispatch<&Ops::mask_rows, &DeviceOps::do_mask_rows>(OpId::mask_rows, storage, {}, out, x, valid);
}

void Ops::causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                        const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                        std::optional<Activation> function) {
  constexpr const char* kOp = "causal_conv1d";
  const DType storage = require_floats(kOp, device_,
                                       {{"x", x},
                                        {"out", out},
                                        {"weight", weight},
                                        {"bias", bias},
                                        {"state_before", state_before},
                                        {"state_after", state_after}});
  require_rank(kOp, "x", x, 3);
  require_rank(kOp, "weight", weight, 3);
  const int64_t channels = x.dim(2), width = weight.dim(2);
  require(weight.dim(0) == channels && weight.dim(1) == 1 && width > 0, kOp, "weight has shape ",
          weight.shape(), ", expected [", channels, ", 1, K] for x's ", channels, " channels");
  if (bias.defined()) require_shape(kOp, "bias", bias, {channels});
  require_shape(kOp, "out", out, x.shape());
  for (const auto& [name, state] :
       {Named{"state_before", state_before}, Named{"state_after", state_after}}) {
    if (state.defined()) require_shape(kOp, name, state, {x.dim(0), channels, width});
  }
  dispatch<&Ops::causal_conv1d, &DeviceOps::do_causal_conv1d>(OpId::causal_conv1d, storage, {width},
                                                              out, state_after, x, weight, bias,
                                                              state_before, function);
}

void Ops::ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                   const SsdParams& params) {
  constexpr const char* kOp = "ssd_scan";
  const DType storage = require_floats(kOp, device_,
                                       {{"x", in.x},
                                        {"dt", in.dt},
                                        {"b", in.b},
                                        {"c", in.c},
                                        {"a_log", in.a_log},
                                        {"d", in.d},
                                        {"dt_bias", in.dt_bias}});
  require_placed(kOp, device_, {{"y", y}, {"state", in.state}, {"state_after", state_after}});
  require_rank(kOp, "x", in.x, 4);
  require_rank(kOp, "b", in.b, 4);
  const int64_t batch = in.x.dim(0), tokens = in.x.dim(1), heads = in.x.dim(2);
  const int64_t groups = in.b.dim(2), columns = in.b.dim(3);
  require(groups > 0 && heads % groups == 0, kOp, "x has ", heads, " heads, b has ", groups,
          " groups: heads must be a multiple");
  require_shape(kOp, "b", in.b, {batch, tokens, groups, columns});
  require_shape(kOp, "c", in.c, in.b.shape());
  require_shape(kOp, "dt", in.dt, {batch, tokens, heads});
  for (const auto& [name, t] :
       {Named{"a_log", in.a_log}, Named{"d", in.d}, Named{"dt_bias", in.dt_bias}}) {
    require_rank(kOp, name, t, 1);
    require_shape(kOp, name, t, {heads});
  }
  require_shape(kOp, "y", y, in.x.shape());
  const bool step = params.form == SsdForm::step;
  require_dtype(kOp, "y", y, step ? storage : at_least_f32(storage));
  for (const auto& [name, state] : {Named{"state", in.state}, Named{"state_after", state_after}}) {
    if (!state.defined()) continue;
    require_shape(kOp, name, state, {batch, heads, in.x.dim(3), columns});
    require_dtype(kOp, name, state, at_least_f32(storage));
  }
  require(params.chunk_size > 0, kOp, "chunk_size is ", params.chunk_size, ", must be positive");
  if (step) require_step(in, params);
  const int64_t chunk = std::min(tokens, params.chunk_size);
  if (step) {
    dispatch<&Ops::ssd_scan, &DeviceOps::do_ssd_scan>(OpId::ssd_scan, storage, {columns}, y,
                                                      state_after, in, params);
  } else {
    dispatch<&Ops::ssd_scan, &DeviceOps::do_ssd_scan>(OpId::ssd_scan, storage, {chunk, columns}, y,
                                                      state_after, in, params);
  }
}

void Ops::gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                         const Tensor& weight, const GatedRmsNormParams& params) {
  constexpr const char* kOp = "gated_rms_norm";
  const DType storage = require_floats(kOp, device_, {{"x", x}, {"out", out}});
  require_floats(kOp, device_, {{"gate", gate}, {"weight", weight}});
  require(gate.dtype() == storage || storage == DType::f32, kOp, "x is ", name_of(storage),
          ", gate ", name_of(gate.dtype()), ": x must be the same or f32");
  require_last(kOp, "weight", weight, x);
  require_shape(kOp, "gate", gate, x.shape());
  require_shape(kOp, "out", out, x.shape());
  require(params.group_size > 0 && x.dim(-1) % params.group_size == 0, kOp, "group_size is ",
          params.group_size, ", must divide x's last axis of ", x.dim(-1));
  dispatch<&Ops::gated_rms_norm, &DeviceOps::do_gated_rms_norm>(
      OpId::gated_rms_norm, storage, {params.group_size}, out, x, gate, weight, params);
}

}  // namespace plumb
