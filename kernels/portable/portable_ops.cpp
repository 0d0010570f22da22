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
      throw Unsupported(
          text('[', op, "] ", name_of(dtype), " on ", device().name(), "; known: f32, f16, bf16"));
  }
  if (const std::string lacking = driver_.lacks(out); !lacking.empty()) {
    throw Unsupported(text('[', op, "] ", device().name(), ": ", lacking));
  }
  return out;
}

i32 PortableOps::storage_number(const char* op, DType dtype) {
  return dtype == DType::boolean ? 3 : static_cast<i32>(storage_of(op, dtype));
}

std::optional<i32> PortableOps::whole_number(DType dtype) {
  constexpr DType kWholes[] = {DType::i64, DType::i32, DType::u32,
                               DType::u8,  DType::i8,  DType::boolean};
  for (i32 i = 0; i < static_cast<i32>(std::size(kWholes)); ++i) {
    if (kWholes[i] == dtype) return i;
  }
  return {};
}

i32 PortableOps::number_of(const char* op, DType dtype, bool whole) {
  if (!whole) return storage_number(op, dtype);
  const std::optional<i32> number = whole_number(dtype);
  require<Unsupported>(number.has_value(), op, name_of(dtype), " with whole numbers on ",
                       device().name());
  return *number;
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
  const bool whole = storage != DType::boolean && whole_number(storage);
  p.to_storage = number_of(op, out.dtype(), whole);
  p.a_storage = number_of(op, a.dtype(), whole);
  if (b.defined()) p.b_storage = number_of(op, b.dtype(), whole);
  if (c.defined()) p.c_storage = number_of(op, c.dtype(), whole);
  p.number = static_cast<float>(call.number);
  p.shift = static_cast<float>(call.shift);
  const bool rounds = !whole && storage != DType::boolean;
  launch(op, whole ? "map_whole" : "map", rounds ? storage_of(op, storage) : Storage::f32,
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
  const bool whole = whole_number(call.x.dtype()).has_value();
  p.x_storage = number_of(op, call.x.dtype(), whole);
  if (!p.gives_index) p.to_storage = number_of(op, call.out.dtype(), whole);
  launch(op, whole ? "reduce_whole" : "reduce",
         whole ? Storage::f32 : storage_of(op, call.x.dtype()), results.total, p, p.reduction);
}

void PortableOps::do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  if (x.numel() == 0) return;
  const int at = static_cast<int>(axis);
  const Tensor first = x.slice(at, 0, 1), out_first = out.slice(at, 0, 1);
  const std::optional<i32> whole = whole_number(x.dtype());
  const Storage storage = whole ? Storage::f32 : storage_of("cumsum", x.dtype());
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
  p.whole = whole.value_or(-1);
  launch("cumsum", "cumsum", storage, groups_for("cumsum", p.total), p);
}

}  // namespace plumb::portable
