// Elementwise ops, reductions and running sums; and how a kernel is launched.
#include "kernels/portable/portable_ops.h"

namespace plumb::portable {

// A result's sum is that of one thread, or of one group of threads, which share it in an order that
// depends on its length alone.
Contract PortableOps::contract(OpId op, DType storage) const {
  Contract out{storage, storage, {24, SumRounding::nearest, 1}, RoundingPoints::eager};
  if (op == OpId::sdpa) out.points = RoundingPoints::fused;
  out.row_bits = !row_of(op).reduction;
  return out;
}

bool PortableOps::overrides(OpId op) const {
  return op == OpId::sdpa || (is_fused(op) && row_of(op).formula);
}

Storage PortableOps::storage_of(const char* op, DType dtype) {
  Storage out = Storage::f32;
  switch (dtype) {
    case DType::f32: break;
    case DType::bf16: out = Storage::bf16; break;
    case DType::f16: out = Storage::f16; break;
    default:
      throw Unsupported(text('[', op, "] ", name_of(dtype), " on ", device().name(),
                             "; known: f32, f16, bf16"));
  }
  if (const std::string lacking = driver_.lacks(out); !lacking.empty()) {
    throw Unsupported(text('[', op, "] ", device().name(), ": ", lacking));
  }
  return out;
}

i32 PortableOps::storage_number(const char* op, DType dtype) {
  return dtype == DType::boolean ? 3 : static_cast<i32>(storage_of(op, dtype));
}

void PortableOps::queue(const char* op, const char* kernel, Storage storage, int64_t groups,
                        const void* arguments, size_t bytes, int variant) {
  if (groups == 0) return;
  require<Unsupported>(groups <= INT32_MAX, op, groups, " groups of threads in one call, at most ",
                       INT32_MAX, " are implemented: split it");
  driver_.launch({&kernel_source(kernel), storage, variant}, static_cast<uint32_t>(groups),
                 arguments, bytes);
}

void PortableOps::do_map(const MapCall& call) {
  if (call.out.numel() == 0) return;
  const char* op = call.row.name;
  const auto given = [](const Tensor* t) { return t ? *t : Tensor(); };
  const Tensor &out = call.out, &a = call.a, b = given(call.b), c = given(call.c);
  const DType storage = call.storage();
  const Layout<4> axes(op, out.shape(), out.rank(),
                       {strides_of(out), strides_of(a), strides_of(b), strides_of(c)});
  MapArguments p{};
  p.to = address(out);
  p.a = address(a);
  p.b = address(b);
  p.c = address(c);
  axes.copy_extents(p.extent);
  axes.copy_strides(0, p.to_stride);
  axes.copy_strides(1, p.a_stride);
  axes.copy_strides(2, p.b_stride);
  axes.copy_strides(3, p.c_stride);
  p.total = axes.total;
  p.axes = axes.axes;
  p.formula = static_cast<i32>(call.formula);
  p.to_storage = storage_number(op, out.dtype());
  p.a_storage = storage_number(op, a.dtype());
  if (b.defined()) p.b_storage = storage_number(op, b.dtype());
  if (c.defined()) p.c_storage = storage_number(op, c.dtype());
  p.number = static_cast<float>(call.number);
  p.shift = static_cast<float>(call.shift);
  launch(op, "map", storage == DType::boolean ? Storage::f32 : storage_of(op, storage),
         groups_for("map", p.total), p, p.formula);
}

void PortableOps::do_reduce(const ReduceCall& call) {
  if (call.out.numel() == 0) return;
  const char* op = call.row.name;
  const Tensor kept = call.kept(), reduced = call.reduced();
  const Layout<2> results(op, call.out.shape(), call.out.rank(),
                          {strides_of(call.out), strides_of(kept)});
  ReduceArguments p{};
  p.to = address(call.out);
  p.x = address(call.x);
  results.copy_extents(p.kept_extent);
  results.copy_strides(0, p.to_stride);
  results.copy_strides(1, p.kept_stride);
  p.kept_axes = results.axes;
  p.count = extent_of(op, call.count);
  if (call.count > 0) {
    const Layout<1> elements(op, reduced.shape(), reduced.rank(), {strides_of(reduced)});
    elements.copy_extents(p.reduced_extent);
    elements.copy_strides(0, p.reduced_stride);
    p.reduced_axes = elements.axes;
  }
  p.reduction = static_cast<i32>(call.reduction());
  p.gives_index = gives_ids(call.row.id);
  p.x_storage = storage_number(op, call.x.dtype());
  if (!p.gives_index) p.to_storage = storage_number(op, call.out.dtype());
  const Storage storage = p.x_storage == 3 ? Storage::f32 : storage_of(op, call.x.dtype());
  launch(op, "reduce", storage, results.total, p, p.reduction);
}

void PortableOps::do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  if (x.numel() == 0) return;
  const int at = static_cast<int>(axis);
  const Tensor first = x.slice(at, 0, 1), out_first = out.slice(at, 0, 1);
  const Storage storage = storage_of("cumsum", x.dtype());
  const Layout<2> axes("cumsum", first.shape(), first.rank(),
                       {strides_of(out_first), strides_of(first)});
  CumsumArguments p{};
  p.to = address(out);
  p.x = address(x);
  axes.copy_extents(p.extent);
  axes.copy_strides(0, p.to_stride);
  axes.copy_strides(1, p.x_stride);
  p.to_step = out.stride(at);
  p.x_step = x.stride(at);
  p.total = axes.total;
  p.count = x.dim(at);
  p.axes = axes.axes;
  launch("cumsum", "cumsum", storage, groups_for("cumsum", p.total), p);
}

}  // namespace plumb::portable
