// Our own matrix product: packed operands, a register tile per instruction set, float32 sums.
#pragma once

#include <optional>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/op_params.h"

namespace plumb::cpu {

// One product out[i, j] = R(f(alpha sum over p of a[i, p] b[p, j] + beta c[i, j] + bias[j])) of
// tensors of one storage dtype, f only if given.
struct Gemm {
  int64_t m, n, k;
  const char* a;
  const RowOffsets* a_rows;
  const char* b;  // b[p, j] at j * b_stride + p (a weight's rows), or at p * b_stride + j
  int64_t b_stride;
  bool b_by_columns;  // the first of the two
  const char* bias;   // [n] or null
  char* out;
  const RowOffsets* out_rows;
  int64_t first_row = 0;  // of a and out, among those of a_rows and out_rows; PairGemm only
  const char* row_bias = nullptr;  // [m] or null; BlockedGemm only
  float alpha = 1, beta = 0;
  const char* c = nullptr;  // or null, with rows as out has them
  const RowOffsets* c_rows = nullptr;
  std::optional<Activation> function = {};

  // Whether a bias is all that follows a sum.
  bool only_adds_bias() const { return alpha == 1 && !c && !function; }
};

inline constexpr int64_t kFinishedColumns = 256;  // at most, at once
// What follows the sums of some columns of a row, and R(): sums are changed.
void finish_row(const Simd& simd, const Format& storage, const Gemm& gemm, int64_t row,
                int64_t column, float* sums, int64_t columns);

// The output is cut into blocks by its shape alone; every block is computed by one thread and sums
// over k in one order, so that no result depends on the number of threads.
class BlockedGemm {
 public:
  BlockedGemm(const Simd& simd, const Format& storage, int64_t m, int64_t n, int64_t k);

  int64_t blocks() const { return row_blocks_ * column_blocks_; }
  double cost() const;             // of a block, in units of ThreadPool::for_each
  int64_t scratch_floats() const;  // that one thread needs

  void compute(const Gemm& gemm, int64_t block, float* scratch) const;

 private:
  // float32 elements of one block: packed a, packed b, widened rows, sums.
  struct Parts {
    float* a;
    float* b;
    float* rows;
    float* sums;
  };
  Parts parts(float* scratch) const;
  void pack_a(const Gemm&, int64_t row, int64_t rows, int64_t at, int64_t depth,
              const Parts&) const;
  void pack_b(const Gemm&, int64_t column, int64_t columns, int64_t at, int64_t depth,
              const Parts&) const;

  const Simd& simd_;
  const Format storage_;
  const int64_t m_, n_, k_;
  int64_t block_rows_, block_columns_, depth_;
  int64_t row_blocks_, column_blocks_;
};

// At most kGemvRows rows: every output is a dot product with a row of b, which is read once.
// b_by_columns only. Handles columns [begin, end); `a` has been widened to float32, [m, k].
void multiply_rows(const Simd& simd, const Format& storage, const Gemm& gemm, const float* a,
                   int64_t begin, int64_t end);

}  // namespace plumb::cpu
