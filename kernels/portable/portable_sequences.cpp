// Convolutions, pools, and the parts of Mamba2.
#include <limits>

#include "kernels/portable/portable_ops.h"

namespace plumb::portable {
namespace {

template <size_t N>
void set_pair(const char* op, i32 (&to)[N], int64_t first, int64_t second) {
  to[0] = extent_of(op, first);
  to[1] = extent_of(op, second);
}

// The axes of x and out, which ConvArguments and PoolArguments have in common.
template <class Arguments>
void set_planes(const char* op, const Tensor& out, const Tensor& x, Arguments& p) {
  p.to = address(out);
  p.x = address(x);
  p.out_b = out.stride(0), p.out_c = out.stride(1), p.out_h = out.stride(2);
  p.x_b = x.stride(0), p.x_c = x.stride(1), p.x_h = x.stride(2);
  set_pair(op, p.x_extent, x.dim(2), x.dim(3));
  set_pair(op, p.out_extent, out.dim(2), out.dim(3));
  p.channels = extent_of(op, out.dim(1));
  p.total = out.numel();
}

}  // namespace

void PortableOps::do_convolve(const ConvCall& call) {
  if (call.out.numel() == 0) return;
  const char* op = call.row.name;
  const ConvParams& params = call.params;
  ConvArguments p{};
  set_planes(op, call.out, call.x, p);
  p.weight = address(call.weight);
  p.bias = address(call.bias);
  p.out_weight = call.weight.stride(call.output_axis());
  p.in_weight = call.weight.stride(call.input_axis());
  p.row_weight = call.weight.stride(2);
  set_pair(op, p.stride, params.stride[0], params.stride[1]);
  set_pair(op, p.padding, params.padding[0], params.padding[1]);
  set_pair(op, p.dilation, params.dilation[0], params.dilation[1]);
  set_pair(op, p.taps, call.weight.dim(2), call.weight.dim(3));
  p.inputs = extent_of(op, call.inputs());
  p.outputs = extent_of(op, call.outputs());
  p.transposed = call.transposed();
  launch(op, "convolve", storage_of(op, call.x.dtype()), groups_for("convolve", p.total), p);
}

void PortableOps::do_pool(const PoolCall& call) {
  if (call.out.numel() == 0) return;
  const char* op = call.row.name;
  const PoolParams& params = call.params;
  PoolArguments p{};
  set_planes(op, call.out, call.x, p);
  set_pair(op, p.stride, params.stride[0], params.stride[1]);
  set_pair(op, p.padding, params.padding[0], params.padding[1]);
  set_pair(op, p.kernel_extent, params.kernel[0], params.kernel[1]);
  p.kind = call.is_mean() ? (params.counts_padding ? 2 : 1) : 0;
  launch(op, "pool", storage_of(op, call.x.dtype()), groups_for("pool", p.total), p);
}

void PortableOps::do_upsample_nearest2d(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  const char* op = "upsample_nearest2d";
  PoolArguments p{};
  set_planes(op, out, x, p);
  p.kind = 3;
  p.scale[0] = nearest_scale(x.dim(2), out.dim(2));
  p.scale[1] = nearest_scale(x.dim(3), out.dim(3));
  launch(op, "pool", storage_of(op, x.dtype()), groups_for("pool", p.total), p);
}

void PortableOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                   const Tensor& weight, const Tensor& bias,
                                   const Tensor& state_before, std::optional<Activation> function) {
  const char* op = "causal_conv1d";
  const Storage storage = storage_of(op, weight.dtype());
  ConvStateArguments p{};
  p.to = address(out);
  p.after = address(state_after);
  p.x = address(x);
  p.weight = address(weight);
  p.bias = address(bias);
  p.before = address(state_before);
  p.out_b = out.stride(0), p.out_t = out.stride(1);
  p.x_b = x.stride(0), p.x_t = x.stride(1);
  if (p.before) p.before_b = state_before.stride(0), p.before_c = state_before.stride(1);
  if (p.after) p.after_b = state_after.stride(0), p.after_c = state_after.stride(1);
  p.weight_c = weight.stride(0);
  p.tokens = extent_of(op, x.dim(1));
  p.channels = extent_of(op, x.dim(2));
  p.width = extent_of(op, weight.dim(2));
  p.function = function ? static_cast<i32>(*function) : -1;
  p.total = x.numel();
  launch(op, op, storage, groups_for(op, p.total), p);
  if (!p.after) return;
  p.to = 0;
  p.total = x.dim(0) * x.dim(2);
  launch(op, op, storage, groups_for(op, p.total), p);
}

void PortableOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                              const SsdParams& params) {
  const char* op = "ssd_scan";
  const Storage storage = storage_of(op, in.x.dtype());
  const int64_t batch = in.x.dim(0), heads = in.x.dim(2), head_dim = in.x.dim(3);
  const int64_t columns = in.b.dim(3);
  if (batch * heads * head_dim == 0) return;
  Arena::Scope scope(arena());
  // All the time the state is in dense memory.
  const bool in_place = state_after.defined() && state_after.contiguous();
  const Tensor state =
      in_place ? state_after : arena().take(DType::f32, {batch, heads, head_dim, columns});
  if (!in.state.defined()) {
    move_bits(op, state, state.shape(), strides_of(state), 0, {}, {});
  } else if (in.state.raw() != state.raw()) {
    do_copy(state, in.state);
  }
  SsdArguments p{};
  p.y = address(y);
  p.state = address(state);
  p.x = address(in.x), p.dt = address(in.dt), p.b = address(in.b), p.c = address(in.c);
  p.a_log = address(in.a_log), p.d = address(in.d), p.dt_bias = address(in.dt_bias);
  p.y_b = y.stride(0), p.y_t = y.stride(1), p.y_h = y.stride(2);
  p.x_b = in.x.stride(0), p.x_t = in.x.stride(1), p.x_h = in.x.stride(2);
  p.dt_b = in.dt.stride(0), p.dt_t = in.dt.stride(1);
  p.b_b = in.b.stride(0), p.b_t = in.b.stride(1), p.b_g = in.b.stride(2);
  p.c_b = in.c.stride(0), p.c_t = in.c.stride(1), p.c_g = in.c.stride(2);
  p.tokens = extent_of(op, in.x.dim(1));
  p.heads = extent_of(op, heads);
  p.head_dim = extent_of(op, head_dim);
  p.group = extent_of(op, heads / in.b.dim(2));
  p.columns = extent_of(op, columns);
  p.step = params.form == SsdForm::step;
  p.clamps = params.dt_min || params.dt_max;
  p.y_storage = storage_number(op, y.dtype());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  p.dt_min = static_cast<float>(round_to(in.x.dtype(), params.dt_min.value_or(-kInfinity)));
  p.dt_max = static_cast<float>(round_to(in.x.dtype(), params.dt_max.value_or(kInfinity)));
  launch(op, op, storage, batch * heads, p);
  if (state_after.defined() && !in_place) do_copy(state_after, state);
}

}  // namespace plumb::portable
