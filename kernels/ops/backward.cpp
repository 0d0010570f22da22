// Argument checks and dispatch of backward ops, and compositions of those that are nothing else.
#include <utility>

#include "kernels/ops/attention_checks.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

int64_t rows_before_last(const Tensor& t) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < t.rank(); ++axis) rows *= t.dim(axis);
  return rows;
}

}  // namespace

void Ops::activation_backward(const Tensor& d_x, const Tensor& x, const Tensor& d_out,
                              Activation function) {
  const CheckedCall call = checked<OpId::activation_backward>(d_x, x, d_out);
  dispatch_map<&Ops::activation_backward>(
      call, {call.row, formula_of(function, Formula::silu_backward), d_x, x, &d_out}, d_x, x, d_out,
      function);
}

// d_up first: d_gate may be gate.
void Ops::gated_activation_backward(const Tensor& d_gate, const Tensor& d_up, const Tensor& gate,
                                    const Tensor& up, const Tensor& d_out, Activation function) {
  const CheckedCall call = checked<OpId::gated_activation_backward>(d_gate, d_up, gate, up, d_out);
  const MapCall by_up{call.row, formula_of(function, Formula::up_backward_silu), d_up, gate,
                      &d_out};
  const MapCall by_gate{
      call.row, formula_of(function, Formula::gate_backward_silu), d_gate, gate, &up, &d_out};
  dispatch_maps<&Ops::gated_activation_backward>(call, {&by_up, &by_gate}, d_gate, d_up, gate, up,
                                                 d_out, function);
}

void Ops::softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) {
  dispatch<&Ops::softmax_backward, &DeviceOps::do_softmax_backward>(
      checked<OpId::softmax_backward>(d_x, y, d_out), d_x, y, d_out);
}

void Ops::rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                            const Tensor& weight, const Tensor& d_out,
                            const RmsNormParams& params) {
  const CheckedCall call = checked<OpId::rms_norm_backward>(d_x, d_weight, x, weight, d_out);
  dispatch<&Ops::rms_norm_backward, &DeviceOps::do_rms_norm_backward>(
      OpId::rms_norm_backward, call.storage, {x.dim(-1), x.dim(-1), rows_before_last(x)}, d_x,
      d_weight, x, weight, d_out, params);
}

void Ops::layer_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                              const Tensor& x, const Tensor& weight, const Tensor& d_out,
                              double eps) {
  const CheckedCall call =
      checked<OpId::layer_norm_backward>(d_x, d_weight, d_bias, x, weight, d_out);
  dispatch<&Ops::layer_norm_backward, &DeviceOps::do_layer_norm_backward>(
      OpId::layer_norm_backward, call.storage, {x.dim(-1), x.dim(-1), rows_before_last(x)}, d_x,
      d_weight, d_bias, x, weight, d_out, eps);
}

void Ops::gated_rms_norm_backward(const Tensor& d_x, const Tensor& d_gate, const Tensor& d_weight,
                                  const Tensor& x, const Tensor& gate, const Tensor& weight,
                                  const Tensor& d_out, const GatedRmsNormParams& params) {
  constexpr const char* kOp = "gated_rms_norm_backward";
  const CheckedCall call =
      checked<OpId::gated_rms_norm_backward>(d_x, d_gate, d_weight, x, gate, weight, d_out);
  for (const auto& [name, t] :
       {Named{"weight", weight}, Named{"d_gate", d_gate}, Named{"d_weight", d_weight}}) {
    if (t.defined()) require_dtype(kOp, name, t, gate.dtype());
  }
  require(gate.dtype() == call.storage || call.storage == DType::f32, kOp, "x is ",
          name_of(call.storage), ", gate ", name_of(gate.dtype()), ": x must be the same or f32");
  require(params.group_size > 0 && x.dim(-1) % params.group_size == 0, kOp, "group_size is ",
          params.group_size, ", must divide x's last axis of ", x.dim(-1));
  dispatch<&Ops::gated_rms_norm_backward, &DeviceOps::do_gated_rms_norm_backward>(
      OpId::gated_rms_norm_backward, call.storage,
      {params.group_size, params.group_size, rows_before_last(x)}, d_x, d_gate, d_weight, x, gate,
      weight, d_out, params);
}

void Ops::embedding_backward(const Tensor& d_weight, const Tensor& d_out, const Tensor& ids,
                             double scale, int64_t padding) {
  const CheckedCall call = checked<OpId::embedding_backward>(d_weight, d_out, ids);
  require(padding >= -1 && padding < d_weight.dim(0), "embedding_backward", "padding is ", padding,
          ", expected a row of the ", d_weight.dim(0), " of d_weight, or -1");
  dispatch<&Ops::embedding_backward, &DeviceOps::do_embedding_backward>(
      OpId::embedding_backward, call.storage, {rows_before_last(d_out)}, d_weight, d_out, ids,
      scale, padding);
}

void Ops::rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                          const Tensor& sin, RotaryStyle style) {
  const CheckedCall call = checked<OpId::rotary_backward>(d_x, d_out, cos, sin);
  const int64_t rotated = call.extent('R');
  require(rotated <= d_out.dim(3) && rotated % 2 == 0, "rotary_backward", "cos has shape ",
          cos.shape(), ", d_out ", d_out.shape(),
          ": the rotated columns must be even and at most head_dim");
  dispatch<&Ops::rotary_backward, &DeviceOps::do_rotary_backward>(
      call, d_x, d_out, cos.expand(0, d_out.dim(0)), sin.expand(0, d_out.dim(0)), style);
}

void Ops::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                        int64_t ignored) {
  dispatch<&Ops::cross_entropy, &DeviceOps::do_cross_entropy>(
      checked<OpId::cross_entropy>(loss, logits, labels), loss, logits, labels, ignored);
}

void Ops::cross_entropy_backward(const Tensor& d_logits, const Tensor& logits, const Tensor& labels,
                                 const Tensor& d_loss, int64_t ignored) {
  dispatch<&Ops::cross_entropy_backward, &DeviceOps::do_cross_entropy_backward>(
      checked<OpId::cross_entropy_backward>(d_logits, logits, labels, d_loss), d_logits, logits,
      labels, d_loss, ignored);
}

void Ops::causal_conv1d_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                                 const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const Tensor& d_out, std::optional<Activation> function) {
  const CheckedCall call =
      checked<OpId::causal_conv1d_backward>(d_x, d_weight, d_bias, x, weight, bias, d_out);
  require(call.extent('W') > 0, "causal_conv1d_backward", "weight has shape ", weight.shape(),
          ", expected at least one column");
  dispatch<&Ops::causal_conv1d_backward, &DeviceOps::do_causal_conv1d_backward>(
      OpId::causal_conv1d_backward, call.storage, {call.extent('W'), x.dim(0) * x.dim(1)}, d_x,
      d_weight, d_bias, x, weight, bias, d_out, function);
}

void Ops::sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                        const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const AttentionMask& mask,
                        const SdpaParams& params) {
  constexpr const char* kOp = "sdpa_backward";
  const CheckedCall call = checked<OpId::sdpa_backward>(d_q, d_k, d_v, d_out, q, k, v, out, lse);
  const int64_t queries = q.dim(2), keys = k.dim(2);
  require(!mask.position, kOp, "slots have no gradient: the mask has a position");
  require_attention(kOp, device_, mask, params, {q.dim(0), q.dim(1), queries, keys}, call.storage);
  dispatch<&Ops::sdpa_backward, &DeviceOps::do_sdpa_backward>(
      OpId::sdpa_backward, call.storage, {call.extent('D'), keys, queries * (q.dim(1) / k.dim(1))},
      d_q, d_k, d_v, d_out, q, k, v, out, lse, mask, params);
}

void Ops::ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y,
                            const Tensor& d_state_after, const SsdInputs& in,
                            const SsdParams& params) {
  constexpr const char* kOp = "ssd_scan_backward";
  const CheckedCall call = checked<OpId::ssd_scan_backward>(
      gradients.x, gradients.dt, gradients.b, gradients.c, gradients.a_log, gradients.d,
      gradients.dt_bias, gradients.state, d_y, d_state_after, in.x, in.dt, in.b, in.c, in.a_log,
      in.d, in.dt_bias, in.state);
  const bool step = params.form == SsdForm::step;
  const DType wide = call.storage == DType::f64 ? DType::f64 : DType::f32;
  require_dtype(kOp, "d_y", d_y, step ? call.storage : wide);
  require(params.chunk_size > 0, kOp, "chunk_size is ", params.chunk_size, ", must be positive");
  if (step) require_step(kOp, in, params);
  const auto run = [&](DeviceOps& device) {
    if (!step) return device.do_ssd_scan_backward(gradients, d_y, d_state_after, in, params);
    Arena::Scope scope(arena_);
    Tensor wide_d_y = d_y;
    if (d_y.dtype() != wide) {
      wide_d_y = arena_.take(wide, d_y.shape());
      run_within(OpId::ssd_scan_backward, [&] { cast(wide_d_y, d_y); });
    }
    device.do_ssd_scan_backward(gradients, wide_d_y, d_state_after, in,
                                {SsdForm::chunk, 1, {}, {}});
  };
  run_op<&Ops::ssd_scan_backward>(OpId::ssd_scan_backward, run, gradients, d_y, d_state_after, in,
                                  params);
  const int64_t tokens = call.extent('T');
  const std::array<int64_t, 3> sums{tokens, call.extent('N'), in.x.dim(0) * tokens};
  record(OpId::ssd_scan_backward, call.storage, sums);
}

void Ops::linear_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                          const Tensor& x, const Tensor& weight, const Tensor& d_out) {
  const CheckedCall call = checked<OpId::linear_backward>(d_x, d_weight, d_bias, x, weight, d_out);
  if (!runs_fused(OpId::linear_backward)) {
    return compose_linear_backward(d_x, d_weight, d_bias, x, weight, d_out);
  }
  dispatch<&Ops::linear_backward, &DeviceOps::do_linear_backward>(
      OpId::linear_backward, call.storage, {d_out.dim(-1), rows_before_last(x)}, d_x, d_weight,
      d_bias, x, weight, d_out);
}

// The rows of any leading axes are those of one matrix: where they are so in memory, or in a copy.
void Ops::compose_linear_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias,
                                  const Tensor& x, const Tensor& weight, const Tensor& d_out) {
  Arena::Scope scope(arena_);
  const auto matrix = [](const Tensor& t) { return t.view({rows_before_last(t), t.dim(-1)}); };
  const auto read = [&](const Tensor& t) {
    if (t.rank() == 2 || t.contiguous()) return t.rank() == 2 ? t : matrix(t);
    const Tensor dense = arena_.take(t.dtype(), t.shape());
    copy(dense, t);
    return matrix(dense);
  };
  const Tensor gradient = read(d_out);
  if (d_x.rank() == 2 || d_x.contiguous()) {
    gemm(d_x.rank() == 2 ? d_x : matrix(d_x), gradient, weight, {}, {}, {});
  } else {
    const Tensor dense = arena_.take(d_x.dtype(), d_x.shape());
    gemm(matrix(dense), gradient, weight, {}, {}, {});
    copy(d_x, dense);
  }
  if (d_weight.defined()) {
    GemmParams transposed;
    transposed.transpose_a = true;
    gemm(d_weight, gradient, read(x), {}, {}, transposed);
  }
  if (d_bias.defined()) reduce(OpId::sum, d_bias, gradient, {0});
}

void Ops::matmul_backward(const Tensor& d_a, const Tensor& d_b, const Tensor& a, const Tensor& b,
                          const Tensor& d_out, bool transpose_b) {
  const CheckedCall call = transpose_b ? checked<OpId::matmul_backward, true>(d_a, d_b, a, b, d_out)
                                       : checked<OpId::matmul_backward>(d_a, d_b, a, b, d_out);
  if (!runs_fused(OpId::matmul_backward)) {
    return compose_matmul_backward(d_a, d_b, a, b, d_out, transpose_b);
  }
  dispatch<&Ops::matmul_backward, &DeviceOps::do_matmul_backward>(
      OpId::matmul_backward, call.storage, {d_out.dim(3), a.dim(2) * (a.dim(1) / b.dim(1))}, d_a,
      d_b, a, b, d_out, transpose_b);
}

// The rows of all heads of a group are those of one matrix, so that their sum is rounded once.
void Ops::compose_matmul_backward(const Tensor& d_a, const Tensor& d_b, const Tensor& a,
                                  const Tensor& b, const Tensor& d_out, bool transpose_b) {
  matmul(d_a, d_out, b, !transpose_b);
  Arena::Scope scope(arena_);
  const int64_t groups = b.dim(1), heads = a.dim(1) / groups, rows = a.dim(2);
  const auto of_groups = [&](const Tensor& t) {
    if (heads == 1) return t;
    Tensor dense = t;
    if (!t.contiguous()) {
      dense = arena_.take(t.dtype(), t.shape());
      copy(dense, t);
    }
    return dense.view({t.dim(0), groups, heads * rows, t.dim(3)});
  };
  const Tensor left = of_groups(a), gradient = of_groups(d_out);
  GemmParams transposed;
  transposed.transpose_a = true;
  if (transpose_b) gemm(d_b, gradient, left, {}, {}, transposed);
  else gemm(d_b, left, gradient, {}, {}, transposed);
}

}  // namespace plumb
