// linear: R(x W^T + bias), the bias inside the single rounding; matmul: R(a b), R(a b^T); gemm: all
// of it, of batches, whose transposed left operands are turned first.
//
// Three ways, chosen by shape and dtype alone: a few rows as dot products (bound by reading W
// once), oneDNN where it is there and the problem is large enough to gain by it, our own blocked
// product otherwise (in bf16 of pairs, or on a matrix unit). Each cuts the output into units by its
// shape, so that no result depends on the number of threads.
#include <array>

#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matrix_gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/pair_gemm.h"
#include "kernels/cpu/plain_loops.h"

namespace plumb::cpu {
namespace {

// Floats of 8 bits as float32, by their codes.
void widen_float8(ThreadPool& pool, const Tensor& out, const Tensor& x) {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto code = static_cast<uint8_t>(i);
    values[i] = static_cast<float>(load(x.dtype(), &code));
  }
  const RowOffsets from(x), to(out);
  const int64_t width = x.dim(-1);
  pool.for_each(from.count(), 0.5 * static_cast<double>(width), [&](int64_t row, int) {
    const auto* codes = x.data<uint8_t>() + from[row];
    float* wide = out.data<float>() + to[row];
    for (int64_t i = 0; i < width; ++i) wide[i] = values[codes[i]];
  });
}

// Below these oneDNN gains nothing over the blocked product (tests/kernels/bench_cpu.cpp).
constexpr int64_t kOnednnRows = 24;
constexpr double kOnednnProducts = 4e6;
// Bytes. 512 rows on two threads of a Xeon with AMX, ours and oneDNN 2.6.3: 8 MiB 7.7 and 8.7 ms,
// 32 MiB 30 and 18.
constexpr int64_t kCachedWeights = int64_t{16} << 20;

void widen_rows(const Format& storage, const Gemm& gemm, float* rows) {
  for (int64_t i = 0; i < gemm.m; ++i) {
    storage.widen(rows + i * gemm.k, storage.at(gemm.a, (*gemm.a_rows)[i]), gemm.k);
  }
}

void gemv(const Simd& simd, ThreadPool& pool, Arena& arena, const Format& storage,
          const Gemm& gemm) {
  constexpr int64_t kColumns = 64;
  const Tensor wide = arena.take(DType::f32, {gemm.m, gemm.k});
  float* rows = wide.data<float>();
  widen_rows(storage, gemm, rows);
  const double cost = 0.2 * static_cast<double>(gemm.m * kColumns * (gemm.k + 16));
  pool.for_each((gemm.n + kColumns - 1) / kColumns, cost, [&](int64_t unit, int) {
    const int64_t begin = unit * kColumns;
    multiply_rows(simd, storage, gemm, rows, begin, std::min(gemm.n, begin + kColumns));
  });
}

// `count` products of one shape, in two steps: gemm_of(i) is one of them.
template <class Product, class GemmOf>
void packed_first(const Product& product, ThreadPool& pool, Arena& arena, int64_t count,
                  const GemmOf& gemm_of) {
  const int64_t words = product.scratch_words(), panels = product.panels();
  const Tensor scratch = arena.take(DType::f32, {pool.size(), words});
  const Tensor packed = arena.take(DType::f32, {count, product.packed_words()});
  const auto packed_a = [&](int64_t i) {
    return packed.data<float>() + i * product.packed_words();
  };
  pool.for_each(count * panels, product.panel_cost(), [&](int64_t unit, int worker) {
    const int64_t i = unit / panels;
    product.pack(gemm_of(i), unit % panels, packed_a(i), scratch.data<float>() + worker * words);
  });
  const int64_t blocks = product.blocks();
  pool.for_each(count * blocks, product.block_cost(), [&](int64_t unit, int worker) {
    const int64_t i = unit / blocks;
    product.compute(gemm_of(i), unit % blocks, packed_a(i), scratch.data<float>() + worker * words);
  });
}

void blocked(const Simd& simd, ThreadPool& pool, Arena& arena, DType dtype, const Gemm& gemm) {
  constexpr int64_t kPackedRows = 4096;  // at a time, so that long inputs need no copy of them all
  if (PairGemm::multiplies(simd, dtype)) {
    Gemm part = gemm;
    const auto part_of = [&](int64_t) { return part; };
    for (; part.first_row < gemm.m; part.first_row += kPackedRows) {
      part.m = std::min(kPackedRows, gemm.m - part.first_row);
      Arena::Scope scope(arena);
      if (MatrixGemm::multiplies(simd, dtype)) {  // weights, the larger operand, are only copied
        packed_first(MatrixGemm(simd, part, true), pool, arena, 1, part_of);
      } else {
        packed_first(PairGemm(simd, part.m, part.n, part.k), pool, arena, 1, part_of);
      }
    }
    return;
  }
  const Format storage(simd, dtype);
  const BlockedGemm blocks(simd, storage, gemm.m, gemm.n, gemm.k);
  const int64_t floats = blocks.scratch_floats();
  const Tensor scratch = arena.take(DType::f32, {pool.size(), floats});
  pool.for_each(blocks.blocks(), blocks.cost(), [&](int64_t block, int worker) {
    blocks.compute(gemm, block, scratch.data<float>() + worker * floats);
  });
}

void run_onednn(const Simd& simd, ThreadPool& pool, Arena& arena, const Format& storage,
                DType dtype, const Gemm& gemm) {
  constexpr int64_t kRows = 256, kColumns = kFinishedColumns;
  const int64_t row_blocks = (gemm.m + kRows - 1) / kRows;
  const int64_t column_blocks = (gemm.n + kColumns - 1) / kColumns;
  const Tensor scratch = arena.take(DType::f32, {pool.size(), kRows * kColumns});
  pool.for_each(row_blocks * column_blocks, 1e9, [&](int64_t unit, int worker) {
    const int64_t row = unit / column_blocks * kRows, rows = std::min(kRows, gemm.m - row);
    const int64_t column = unit % column_blocks * kColumns;
    const int64_t columns = std::min(kColumns, gemm.n - column);
    float* sums = scratch.data<float>() + worker * kRows * kColumns;
    onednn::gemm(dtype, rows, columns, gemm.k, storage.at(gemm.a, (*gemm.a_rows)[row]),
                 gemm.a_rows->stride(), storage.at(gemm.b, column * gemm.b_stride), gemm.b_stride,
                 sums, kColumns);
    for (int64_t i = 0; i < rows; ++i) {
      finish_row(simd, storage, gemm, row + i, column, sums + i * kColumns, columns);
    }
  });
}

}  // namespace

std::vector<LinearWay> CpuOps::linear_ways(const LinearShape& shape) {
  std::vector<LinearWay> out;
  if (shape.rows <= kGemvRows) out.push_back({"gemv"});
  if (use_onednn_ && onednn::multiplies(shape.dtype) && shape.inner > 0) out.push_back({"onednn"});
  out.push_back({"blocked"});
  return out;
}

bool CpuOps::linear_by(std::string_view kernel, const Gemm& gemm, const Tensor& x) {
  if (kernel == "gemv") {
    if (gemm.m > kGemvRows || !choose_simd("gemv")) return false;
    gemv(*simd_, pool_, arena(), {*simd_, x.dtype()}, gemm);
    return true;
  }
  if (kernel == "onednn") {
    // It wants rows at equal distances that do not overlap.
    const RowOffsets& rows = *gemm.a_rows;
    const bool regular = rows.uniform() && rows.stride() >= gemm.k && gemm.b_stride >= gemm.k;
    const bool can = use_onednn_ && onednn::multiplies(x.dtype()) && gemm.k > 0 && regular;
    if (!can || !choose("onednn")) return false;
    const Simd& widest = *simds_.front();
    run_onednn(widest, pool_, arena(), {widest, x.dtype()}, x.dtype(), gemm);
    return true;
  }
  if (kernel != "blocked" || !choose_simd("blocked")) return false;
  blocked(*simd_, pool_, arena(), x.dtype(), gemm);
  return true;
}

void CpuOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  require_storage("linear", x);
  if (out.numel() == 0) return;
  const RowOffsets x_rows(x), out_rows(out);
  const Format storage(*simds_.front(), x.dtype());
  const Gemm gemm{x_rows.count(),
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
  if (!choice().forced()) {
    const LinearWay* tuned = tuned_.find(linear_shape(out, weight, bias));
    if (tuned && linear_by(tuned->kernel, gemm, x)) return;
  }
  if (linear_by("gemv", gemm, x)) return;
  const double products = static_cast<double>(gemm.m * gemm.n) * static_cast<double>(gemm.k);
  // Our own product is as fast or faster where it uses all that the processor has for bf16, on a
  // matrix unit as long as the caches hold the weights.
  const Simd& widest = *simds_.front();
  const bool own = MatrixGemm::multiplies(widest, x.dtype())
                       ? 2 * gemm.n * gemm.k <= kCachedWeights
                       : PairGemm::multiplies(widest, x.dtype()) && !onednn::has_matrix_unit();
  const bool pays = gemm.m >= kOnednnRows && products >= kOnednnProducts && !own;
  if ((pays || choice().forced()) && linear_by("onednn", gemm, x)) return;
  if (!linear_by("blocked", gemm, x)) choice().exhausted();
}

// matmul: attention scores and values, per batch row and head.
void CpuOps::do_gemm(const GemmCall& call) {
  if (is_float8(call.a.dtype())) {  // of which float32 has every value
    Arena::Scope scope(arena());
    GemmCall wide = call;
    for (Tensor* t : {&wide.a, &wide.b}) {
      const Tensor narrow = *t;
      *t = arena().take(DType::f32, narrow.shape());
      widen_float8(pool_, *t, narrow);
    }
    return do_gemm(wide);
  }
  if (plain::has(call.a.dtype())) {
    settle_for_simd();
    return plain::gemm(pool_, call);
  }
  const Format storage = format(call.row.name, call.a);
  if (call.out.numel() == 0) return;
  Arena::Scope scope(arena());
  const Tensor &out = call.out, &b = call.b;
  Tensor a = call.a;
  if (call.params.transpose_a) {
    a = arena().take(a.dtype(), {a.dim(0), a.dim(1), call.rows(), call.inner()});
    exchange_last_axes(a, call.a);
  }
  const bool transpose_b = call.params.transpose_b;
  const int64_t heads = a.dim(1), group = call.group(), count = a.dim(0) * heads;
  const auto one_head = [](const Tensor& t) { return t.slice(0, 0, 1).slice(1, 0, 1); };
  const RowOffsets a_rows(one_head(a)), out_rows(one_head(out));
  const RowOffsets c_rows(call.c.defined() ? one_head(call.c) : one_head(out));
  const auto of_head = [&](int64_t i) {
    const int64_t row = i / heads, head = i % heads;
    const auto offset = [row](const Tensor& t, int64_t h) {
      return row * t.stride(0) + h * t.stride(1);
    };
    Gemm gemm{};
    gemm.m = call.rows();
    gemm.n = call.columns();
    gemm.k = call.inner();
    gemm.a = storage.at(a, offset(a, head));
    gemm.a_rows = &a_rows;
    gemm.b = storage.at(b, offset(b, head / group));
    gemm.b_stride = b.stride(2);
    gemm.b_by_columns = transpose_b;
    gemm.bias = call.bias.defined() ? storage.at(call.bias, 0) : nullptr;
    gemm.out = storage.at(static_cast<char*>(out.raw()), offset(out, head));
    gemm.out_rows = &out_rows;
    gemm.alpha = static_cast<float>(call.params.alpha);
    gemm.beta = static_cast<float>(call.params.beta);
    gemm.c = call.c.defined() ? storage.at(call.c, offset(call.c, head)) : nullptr;
    gemm.c_rows = &c_rows;
    gemm.function = call.params.function;
    return gemm;
  };
  if (a.dim(2) <= kGemvRows && transpose_b) {
    const double cost = 0.2 * static_cast<double>(a.dim(2) * out.dim(3) * (a.dim(3) + 16));
    const Tensor wide = arena().take(DType::f32, {pool_.size(), kGemvRows * a.dim(3)});
    return pool_.for_each(count, cost, [&](int64_t i, int worker) {
      const Gemm gemm = of_head(i);
      float* rows = wide.data<float>() + worker * kGemvRows * gemm.k;
      widen_rows(storage, gemm, rows);
      multiply_rows(*simd_, storage, gemm, rows, 0, gemm.n);
    });
  }
  const Gemm shape = of_head(0);
  if (MatrixGemm::multiplies(*simd_, a.dtype()) && shape.only_adds_bias()) {
    return packed_first(MatrixGemm(*simd_, shape, false), pool_, arena(), count, of_head);
  }
  if (PairGemm::multiplies(*simd_, a.dtype())) {
    return packed_first(PairGemm(*simd_, shape.m, shape.n, shape.k), pool_, arena(), count,
                        of_head);
  }
  const BlockedGemm blocked(*simd_, storage, a.dim(2), out.dim(3), a.dim(3));
  const int64_t floats = blocked.scratch_floats();
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  pool_.for_each(count * blocked.blocks(), blocked.cost(), [&](int64_t unit, int worker) {
    blocked.compute(of_head(unit / blocked.blocks()), unit % blocked.blocks(),
                    scratch.data<float>() + worker * floats);
  });
}

}  // namespace plumb::cpu
