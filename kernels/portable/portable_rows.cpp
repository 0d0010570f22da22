// Norms, softmax, top_k, rotary: a group of threads owns a row.
#include "kernels/portable/portable_ops.h"

namespace plumb::portable {

void PortableOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const RmsNormParams& params) {
  if (x.numel() == 0) return;
  NormArguments p{};
  p.to = address(out);
  p.x = address(x);
  p.weight = address(weight);
  p.out_rows = rows_of("rms_norm", out);
  p.x_rows = rows_of("rms_norm", x);
  p.gate_rows.inner = p.gate_rows.innermost = 1;
  p.columns = extent_of("rms_norm", x.dim(-1));
  p.groups = 1;
  p.round_before = params.rounding == WeightRounding::before;
  p.weight_storage = storage_number("rms_norm", weight.dtype());
  p.eps = static_cast<float>(params.eps);
  p.weight_offset = static_cast<float>(params.weight_offset);
  launch("rms_norm", "rms_norm", storage_of("rms_norm", x.dtype()), row_count(x), p);
}

void PortableOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                    const Tensor& weight, const GatedRmsNormParams& params) {
  if (x.numel() == 0) return;
  const char* op = "gated_rms_norm";
  NormArguments p{};
  p.to = address(out);
  p.x = address(x);
  p.weight = address(weight);
  p.gate = address(gate);
  p.out_rows = rows_of(op, out);
  p.x_rows = rows_of(op, x);
  p.gate_rows = rows_of(op, gate);
  p.columns = extent_of(op, params.group_size);
  p.groups = extent_of(op, x.dim(-1) / params.group_size);
  p.round_before = 1;
  p.gate_storage = storage_number(op, gate.dtype());
  p.weight_storage = storage_number(op, weight.dtype());
  p.eps = static_cast<float>(params.eps);
  launch(op, "rms_norm", storage_of(op, x.dtype()), row_count(x) * p.groups, p);
}

void PortableOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, double eps) {
  if (x.numel() == 0) return;
  NormArguments p{};
  p.to = address(out);
  p.x = address(x);
  p.weight = address(weight);
  p.bias = address(bias);
  p.out_rows = rows_of("layer_norm", out);
  p.x_rows = rows_of("layer_norm", x);
  p.columns = extent_of("layer_norm", x.dim(-1));
  p.eps = static_cast<float>(eps);
  launch("layer_norm", "layer_norm", storage_of("layer_norm", x.dtype()), row_count(x), p);
}

void PortableOps::do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, const GroupNormParams& params) {
  if (x.numel() == 0) return;
  const char* op = "group_norm";
  Arena::Scope scope(arena());
  const Tensor from = dense(x);
  const Tensor to = out.contiguous() ? out : arena().take(out.dtype(), out.shape());
  GroupNormArguments p{};
  p.to = address(to);
  p.x = address(from);
  p.weight = address(weight);
  p.bias = address(bias);
  p.groups = extent_of(op, params.groups);
  p.channels = extent_of(op, x.dim(1) / params.groups);
  p.inner = extent_of(op, x.numel() / (x.dim(0) * x.dim(1)));
  p.count = extent_of(op, int64_t{p.channels} * p.inner);
  p.eps = static_cast<float>(params.eps);
  launch(op, op, storage_of(op, x.dtype()), x.dim(0) * p.groups, p);
  if (to.raw() != out.raw()) do_copy(out, to);
}

void PortableOps::do_softmax(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  SoftmaxArguments p{};
  p.to = address(out);
  p.x = address(x);
  p.out_rows = rows_of("softmax", out);
  p.x_rows = rows_of("softmax", x);
  p.columns = extent_of("softmax", x.dim(-1));
  launch("softmax", "softmax", storage_of("softmax", x.dtype()), row_count(x), p);
}

void PortableOps::do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  if (values.numel() == 0) return;
  TopKArguments p{};
  p.values = address(values);
  p.ids = address(ids);
  p.x = address(x);
  p.value_rows = rows_of("top_k", values);
  p.id_rows = rows_of("top_k", ids);
  p.x_rows = rows_of("top_k", x);
  p.columns = extent_of("top_k", x.dim(-1));
  p.count = extent_of("top_k", values.dim(-1));
  p.largest = largest;
  launch("top_k", "top_k", storage_of("top_k", x.dtype()), row_count(x), p);
}

void PortableOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                                  const Tensor& inv_freq, double attention_scaling) {
  if (cos.numel() == 0) return;
  const char* op = "rotary_table";
  require<Unsupported>(inv_freq.dtype() == DType::f32, op, "inv_freq in ",
                       name_of(inv_freq.dtype()), " on ", device().name(), ", expected f32");
  RotaryTableArguments p{};
  p.cos = address(cos);
  p.sin = address(sin);
  p.positions = address(positions);
  p.inv_freq = address(inv_freq);
  p.cos_rows = rows_of(op, cos);
  p.sin_rows = rows_of(op, sin);
  p.position_b = positions.stride(0);
  p.tokens = extent_of(op, positions.dim(1));
  p.half_columns = extent_of(op, inv_freq.dim(0));
  p.scaling = static_cast<float>(attention_scaling);
  launch(op, op, storage_of(op, cos.dtype()), row_count(cos), p);
}

void PortableOps::turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
                       const Tensor& sin, RotaryStyle style, bool inverse) {
  if (x.numel() == 0) return;
  RotaryArguments p{};
  p.to = address(out);
  p.x = address(x);
  p.cos = address(cos);
  p.sin = address(sin);
  p.out_b = out.stride(0), p.out_h = out.stride(1), p.out_t = out.stride(2);
  p.x_b = x.stride(0), p.x_h = x.stride(1), p.x_t = x.stride(2);
  p.cos_b = cos.dim(0) == 1 ? 0 : cos.stride(0), p.cos_t = cos.stride(1);
  p.sin_b = sin.dim(0) == 1 ? 0 : sin.stride(0), p.sin_t = sin.stride(1);
  p.heads = extent_of(op, x.dim(1));
  p.tokens = extent_of(op, x.dim(2));
  p.pairs = extent_of(op, cos.dim(2) / 2);
  p.columns = extent_of(op, x.dim(3));
  p.interleaved = style == RotaryStyle::interleaved;
  p.inverse = inverse;
  p.total = x.dim(0) * x.dim(1) * x.dim(2) * (p.columns - p.pairs);
  launch(op, "rotary", storage_of(op, x.dtype()), groups_for("rotary", p.total), p);
}

void PortableOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos,
                            const Tensor& sin, RotaryStyle style) {
  turn("rotary", out, x, cos, sin, style, false);
}

void PortableOps::do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                                     const Tensor& sin, RotaryStyle style) {
  turn("rotary_backward", d_x, d_out, cos, sin, style, true);
}

}  // namespace plumb::portable
