// Our own product of bf16 matrices on a matrix unit: float32 sums.
#pragma once

#include "kernels/cpu/blocked_gemm.h"

namespace plumb::cpu {

// The calling thread may multiply on the matrix unit while this lives.
class MatrixUse {
 public:
  explicit MatrixUse(const MatrixUnit& unit) : unit_(unit) { unit_.begin(); }
  ~MatrixUse() { unit_.end(); }
  MatrixUse(const MatrixUse&) = delete;
  MatrixUse& operator=(const MatrixUse&) = delete;

 private:
  const MatrixUnit& unit_;
};

// Rows of the left operand are copied as they are, columns of the right one interleaved to words of
// two neighbours along k, in strips of kMatrixSide columns. All of the right one is packed first;
// then the output is cut into blocks by its shape alone, each computed by one thread, so that no
// result depends on the number of threads.
class MatrixGemm {
 public:
  // `transposed`: (b^T a^T)^T, where b is given by columns: they are copied, and a is interleaved.
  MatrixGemm(const Simd& simd, const Gemm& shape, bool transposed);
  static bool multiplies(const Simd& simd, DType dtype) {
    return simd.matrix && dtype == DType::bf16;
  }

  int64_t panels() const { return (columns_ + kMatrixSide - 1) / kMatrixSide; }  // of the right one
  int64_t packed_words() const { return panels() * strip_words(); }
  int64_t blocks() const { return row_blocks_ * column_blocks_; }
  int64_t scratch_words() const;  // that one thread needs, in either step
  double panel_cost() const;      // in units of ThreadPool::for_each
  double block_cost() const;

  // `packed` and `scratch` are memory of 32-bit words at addresses divisible by 64.
  void pack(const Gemm& gemm, int64_t panel, float* packed, float* scratch) const;
  void compute(const Gemm& gemm, int64_t block, const float* packed, float* scratch) const;

 private:
  static constexpr int64_t kDepth = 16;  // steps for which rows are packed at once
  static constexpr int64_t kBlockRows = 256, kBlockColumns = 512;
  static constexpr int64_t kFewColumns = 128;  // so few do not pay for a copy of the rows
  static constexpr int64_t kSumsBlock = kMatrixSide * kMatrixSide;
  static constexpr int64_t kPiecePairs = 128;  // interleaved at once, in the first-level cache

  // A part of the output, [row, row + rows) x [column, column + columns) of the product of left and
  // right, and the steps along k that are added to it.
  struct Part {
    int64_t row, rows, column, columns, step, steps;
    char* left;  // packed rows
    float* sums;
  };
  int64_t strip_words() const { return steps_ * kMatrixStepBytes / 4; }
  const char* left_row(const Gemm&, int64_t row) const;
  bool reads_rows_in_place(const Gemm&) const;
  void copy_rows(const Gemm&, const Part&, int64_t first, int64_t rows) const;
  void add_products(const Gemm&, const Part&, const float* packed) const;
  void look_ahead(const Gemm&, const Part&, int64_t call, MatrixTile&) const;
  void multiply(const Gemm&, const Part&, int64_t i, int64_t j, MatrixTile&) const;

  const Simd& simd_;
  const bool transposed_;
  const int64_t rows_, columns_, k_, steps_;  // rows of left, columns of right
  const int64_t block_rows_, block_columns_, row_blocks_, column_blocks_;
};

}  // namespace plumb::cpu
