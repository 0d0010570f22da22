// Moves of bits, casts, lookups: ops that compute nothing.
#include <utility>

#include "kernels/ops/casts.h"
#include "kernels/portable/portable_ops.h"

namespace plumb::portable {
namespace {

i64 bits_of(DType dtype, double value) {
  i64 bits = 0;
  store_number(dtype, &bits, {false, 0, value});
  return bits;
}

}  // namespace

void PortableOps::move_bits(const char* op, const Tensor& out, const Shape& shape,
                            const Strides& to, u64 x, const Strides& from, const Flags& flags) {
  if (shape.numel() == 0) return;
  const Layout<3> axes(op, shape, shape.rank(), {to, from, flags.strides});
  MoveArguments p{};
  p.to = address(out);
  p.x = x;
  p.flags = address(flags.t);
  axes.copy_extents(p.extent);
  axes.copy_strides(0, p.to_stride);
  axes.copy_strides(1, p.x_stride);
  axes.copy_strides(2, p.flag_stride);
  for (int i = 0; i < axes.axes; ++i) {
    p.step[i] = 1;
    p.x_extent[i] = axes.extent[i];
  }
  p.total = axes.total;
  p.outside = bits_of(out.dtype(), flags.value);
  p.axes = axes.axes;
  p.bytes = static_cast<i32>(size_of(out.dtype()));
  p.id_axis = -1;
  p.moves = flags.moves;
  launch(op, "move", Storage::f32, groups_for("move", p.total), p, p.bytes);
}

void PortableOps::do_move(const MoveCall& call) {
  if (call.out.numel() == 0) return;
  const int rank = call.out.rank();
  MoveArguments p{};
  p.to = address(call.out);
  p.x = address(call.x);
  p.ids = address(call.ids);
  p.error = id_error_;
  p.total = call.out.numel();
  p.outside = bits_of(call.out.dtype(), call.value);
  p.axes = rank;
  p.bytes = static_cast<i32>(size_of(call.out.dtype()));
  p.id_axis = call.id_axis < 0 ? -1 : rank - 1 - call.id_axis;
  if (call.id_axis >= 0) p.id_dtype = *whole_number(call.ids.dtype());
  p.id_for_each = call.has_id_for_each();
  p.op = static_cast<i32>(call.row.id);
  for (int i = 0; i < rank; ++i) {
    const int axis = rank - 1 - i;  // the kernel's first is the innermost one
    const MoveCall::Axis& of = call.axis(axis);
    p.extent[i] = extent_of(call.row.name, call.out.dim(axis));
    p.to_stride[i] = call.out.stride(axis);
    p.x_stride[i] = call.x.stride(of.of);
    p.x_extent[i] = call.x.dim(of.of);
    p.first[i] = of.first;
    p.step[i] = of.step;
    if (of.wraps) p.wraps |= 1 << i;
    if (call.id_axis >= 0) p.id_stride[i] = call.ids.stride(axis);
  }
  launch(call.row.name, "move", Storage::f32, groups_for("move", p.total), p, p.bytes);
}

void PortableOps::do_index_add(const IndexAddCall& call) {
  const char* op = call.row.name;
  if (call.out.numel() == 0) return;
  const std::optional<i32> whole = whole_number(call.out.dtype());
  const Storage storage = whole ? Storage::f32 : storage_of(op, call.out.dtype());
  const int rank = call.out.rank();
  IndexAddArguments p{};
  p.to = address(call.out);
  p.x = address(call.x);
  p.ids = address(call.ids);
  p.source = address(call.source);
  p.error = id_error_;
  p.total = call.out.numel();
  p.count = call.ids.dim(call.axis);
  p.source_step = call.source.stride(call.axis);
  p.id_step = call.ids.stride(call.axis);
  p.axes = rank;
  p.axis = rank - 1 - call.axis;
  p.id_dtype = *whole_number(call.ids.dtype());
  p.id_for_each = call.given.shape() == call.ids.shape();
  p.op = static_cast<i32>(call.op());
  p.whole = whole.value_or(-1);
  for (int i = 0; i < rank; ++i) {
    const int axis = rank - 1 - i;
    p.extent[i] = extent_of(op, call.out.dim(axis));
    p.source_extent[i] = extent_of(op, call.ids.dim(axis));
    p.to_stride[i] = call.out.stride(axis);
    p.x_stride[i] = call.x.stride(axis);
    p.source_stride[i] = call.source.stride(axis);
    p.id_stride[i] = call.ids.stride(axis);
  }
  launch(op, "index_add", storage, groups_for("index_add", p.total), p);
}

void PortableOps::do_copy(const Tensor& out, const Tensor& x) {
  move_bits("copy", out, out.shape(), strides_of(out), address(x), strides_of(x), {});
}

Tensor PortableOps::dense(const Tensor& t) {
  if (t.contiguous()) return t;
  const Tensor out = arena().take(t.dtype(), t.shape());
  do_copy(out, t);
  return out;
}

void PortableOps::do_transpose(const Tensor& out, const Tensor& x) {
  Strides from = strides_of(x);
  std::swap(from[static_cast<size_t>(x.rank() - 1)], from[static_cast<size_t>(x.rank() - 2)]);
  move_bits("transpose", out, out.shape(), strides_of(out), address(x), from, {});
}

void PortableOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  const Tensor split = out.split(1, out.dim(1) / x.dim(1));
  Strides from = strides_of(x.with_axis(2));
  from[2] = 0;
  move_bits("repeat_heads", out, split.shape(), strides_of(split), address(x), from, {});
}

void PortableOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  move_bits("mask_rows", out, out.shape(), strides_of(out), address(x), strides_of(x),
            {valid, strides_of(valid), true, 0});
}

void PortableOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask,
                               double value) {
  move_bits("mask_fill", out, out.shape(), strides_of(out), address(x), strides_of(x),
            {mask, strides_of(mask), false, value});
}

void PortableOps::do_generate(const GenerateCall& call) {
  if (call.out.numel() == 0) return;
  if (call.generator == Generator::uniform) {
    const Layout<1> axes(call.row.name, call.out.shape(), call.out.rank(), {strides_of(call.out)});
    UniformArguments p{};
    p.to = address(call.out);
    axes.copy_extents(p.extent);
    axes.copy_strides(0, p.to_stride);
    p.total = axes.total;
    p.seed = call.random.seed;
    p.offset = call.random.offset;
    p.axes = axes.axes;
    p.bits = info(call.out.dtype()).significand_bits;
    return launch("uniform", "uniform", storage_of("uniform", call.out.dtype()),
                  groups_for("uniform", p.total), p);
  }
  if (call.generator != Generator::line || call.step != 0) lacks(text("do_", call.row.name));
  Flags flags;
  flags.value = call.start;
  move_bits(call.row.name, call.out, call.out.shape(), strides_of(call.out), 0, {}, flags);
}

void PortableOps::do_cast(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  const Layout<2> axes("cast", out.shape(), out.rank(), {strides_of(out), strides_of(x)});
  CastArguments p{};
  p.to = address(out);
  p.x = address(x);
  axes.copy_extents(p.extent);
  axes.copy_strides(0, p.to_stride);
  axes.copy_strides(1, p.x_stride);
  p.total = axes.total;
  p.axes = axes.axes;
  p.to_dtype = static_cast<i32>(out.dtype());
  p.from_dtype = static_cast<i32>(x.dtype());
  launch("cast", "cast", Storage::f32, groups_for("cast", p.total), p);
}

void PortableOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  if (out.numel() == 0) return;
  PositionArguments p{};
  p.to = address(out);
  p.valid = address(valid);
  p.out_b = out.stride(0);
  p.valid_b = valid.defined() ? valid.stride(0) : 0;
  p.offset = offset;
  p.batch = extent_of("position_ids", out.dim(0));
  p.tokens = extent_of("position_ids", out.dim(1));
  launch("position_ids", "position_ids", Storage::f32, groups_for("position_ids", p.batch), p);
}

void PortableOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                               double scale) {
  if (out.numel() == 0) return;
  EmbeddingArguments p{};
  p.to = address(out);
  p.ids = address(ids);
  p.weight = address(weight);
  p.error = id_error_;
  p.out_rows = rows_of("embedding", out);
  p.id_rows = rows_of("embedding", ids);
  p.weight_row = weight.stride(0);
  p.vocabulary = weight.dim(0);
  p.columns = extent_of("embedding", weight.dim(1));
  p.ids_width = extent_of("embedding", ids.dim(-1));
  p.id_dtype = *whole_number(ids.dtype());
  p.op = static_cast<i32>(OpId::embedding);
  p.scale = static_cast<float>(scale);
  launch("embedding", "embedding", storage_of("embedding", out.dtype()), row_count(out), p);
}

}  // namespace plumb::portable
