// R(x W^T + bias), the bias inside the single rounding.
//
// Three ways, chosen by shape and dtype alone: a few rows as dot products (bound by reading W
// once), oneDNN where it is there and the problem is large enough to gain by it, our own blocked
// product otherwise. Each cuts the output into units by its shape, so that no result depends on the
// number of threads.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/product.h"

namespace plumb::cpu {
namespace {

// Below these oneDNN gains nothing over the blocked product (tests/kernels/bench_cpu.cpp).
constexpr int64_t kOnednnRows = 24;
constexpr double kOnednnProducts = 4e6;

void few_rows(const Simd& simd, ThreadPool& pool, Arena& arena, const Format& storage,
              const Product& product) {
  constexpr int64_t kColumns = 64;
  const Tensor wide = arena.take(DType::f32, {product.m, product.k});
  float* rows = wide.data<float>();
  for (int64_t i = 0; i < product.m; ++i) {
    storage.widen(rows + i * product.k, storage.at(product.a, (*product.a_rows)[i]), product.k);
  }
  const double cost = 0.2 * static_cast<double>(product.m * kColumns * (product.k + 16));
  pool.for_each((product.n + kColumns - 1) / kColumns, cost, [&](int64_t unit, int) {
    const int64_t begin = unit * kColumns;
    multiply_rows(simd, storage, product, rows, begin, std::min(product.n, begin + kColumns));
  });
}

void blocked(const Simd& simd, ThreadPool& pool, Arena& arena, const Format& storage,
             const Product& product) {
  const BlockedProduct blocks(simd, storage, product.m, product.n, product.k);
  const int64_t floats = blocks.scratch_floats();
  const Tensor scratch = arena.take(DType::f32, {pool.size(), floats});
  pool.for_each(blocks.blocks(), blocks.cost(), [&](int64_t block, int worker) {
    blocks.compute(product, block, scratch.data<float>() + worker * floats);
  });
}

void library(const Simd& simd, ThreadPool& pool, Arena& arena, const Format& storage, DType dtype,
             const Product& product) {
  constexpr int64_t kRows = 256, kColumns = 256;
  const int64_t row_blocks = (product.m + kRows - 1) / kRows;
  const int64_t column_blocks = (product.n + kColumns - 1) / kColumns;
  const Tensor scratch = arena.take(DType::f32, {pool.size(), kRows * kColumns});
  pool.for_each(row_blocks * column_blocks, 1e9, [&](int64_t unit, int worker) {
    const int64_t row = unit / column_blocks * kRows, rows = std::min(kRows, product.m - row);
    const int64_t column = unit % column_blocks * kColumns;
    const int64_t columns = std::min(kColumns, product.n - column);
    float* sums = scratch.data<float>() + worker * kRows * kColumns;
    onednn::product(dtype, rows, columns, product.k, storage.at(product.a, (*product.a_rows)[row]),
                    product.a_rows->stride(), storage.at(product.b, column * product.b_stride),
                    product.b_stride, sums, kColumns);
    float bias[kColumns];
    const float* added =
        product.bias ? storage.read(storage.at(product.bias, column), bias, columns) : nullptr;
    for (int64_t i = 0; i < rows; ++i) {
      float* line = sums + i * kColumns;
      if (added) simd.rows[kF32].add(line, line, added, columns);
      storage.write(storage.at(product.out, (*product.out_rows)[row + i] + column), line, columns);
    }
  });
}

}  // namespace

void CpuOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  require_storage("linear", x);
  if (out.numel() == 0) return;
  const RowOffsets x_rows(x), out_rows(out);
  const Format storage(*simds_.front(), x.dtype());
  const Product product{x_rows.count(),
                        weight.dim(0),
                        weight.dim(1),
                        storage.at(x, 0),
                        &x_rows,
                        storage.at(weight, 0),
                        weight.stride(0),
                        true,
                        bias.defined() ? storage.at(bias, 0) : nullptr,
                        static_cast<char*>(out.raw()),
                        &out_rows};
  Arena::Scope scope(arena());
  if (product.m <= kFewRows && choose_simd("few_rows")) {
    return few_rows(*simd_, pool_, arena(), {*simd_, x.dtype()}, product);
  }
  const double products =
      static_cast<double>(product.m * product.n) * static_cast<double>(product.k);
  // oneDNN wants rows at equal distances that do not overlap.
  const bool regular =
      x_rows.uniform() && x_rows.stride() >= product.k && product.b_stride >= product.k;
  const bool can = use_onednn_ && onednn::multiplies(x.dtype()) && product.k > 0 && regular;
  const bool pays = product.m >= kOnednnRows && products >= kOnednnProducts;
  if (can && (pays || choice().forced()) && choose("onednn")) {
    return library(*simds_.front(), pool_, arena(), storage, x.dtype(), product);
  }
  if (!choose_simd("blocked")) choice().exhausted();
  blocked(*simd_, pool_, arena(), {*simd_, x.dtype()}, product);
}

}  // namespace plumb::cpu
