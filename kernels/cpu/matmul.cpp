// Batched product of attention scores and values: R(a b) or R(a b^T) per batch row and head.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/product.h"

namespace plumb::cpu {

void CpuOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  const Format storage = format("matmul", a);
  if (out.numel() == 0) return;
  const int64_t heads = a.dim(1), group = heads / b.dim(1);
  const BlockedProduct blocked(*simd_, storage, a.dim(2), out.dim(3), a.dim(3));
  const auto one_head = [](const Tensor& t) { return t.slice(0, 0, 1).slice(1, 0, 1); };
  const RowOffsets a_rows(one_head(a)), out_rows(one_head(out));
  Arena::Scope scope(arena());
  const int64_t floats = blocked.scratch_floats();
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  const int64_t units = a.dim(0) * heads * blocked.blocks();
  pool_.for_each(units, blocked.cost(), [&](int64_t unit, int worker) {
    const int64_t head = unit / blocked.blocks() % heads, row = unit / blocked.blocks() / heads;
    const auto offset = [&](const Tensor& t, int64_t h) {
      return row * t.stride(0) + h * t.stride(1);
    };
    Product product;
    product.m = a.dim(2);
    product.n = out.dim(3);
    product.k = a.dim(3);
    product.a = storage.at(a, offset(a, head));
    product.a_rows = &a_rows;
    product.b = storage.at(b, offset(b, head / group));
    product.b_stride = b.stride(2);
    product.b_by_columns = transpose_b;
    product.bias = nullptr;
    product.out = storage.at(static_cast<char*>(out.raw()), offset(out, head));
    product.out_rows = &out_rows;
    blocked.compute(product, unit % blocked.blocks(), scratch.data<float>() + worker * floats);
  });
}

}  // namespace plumb::cpu
