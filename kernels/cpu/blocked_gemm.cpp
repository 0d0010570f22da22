// Blocking after Goto and van de Geijn (2008), one level simpler: a block of out keeps its float32
// sums; for every slice of k, the rows of a are packed once (they stay in the second-level cache)
// and b is packed one strip of tile_columns at a time (first level).
#include "kernels/cpu/blocked_gemm.h"

#include "kernels/ops/map_call.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBlockRows = 32 * kTileRows;
constexpr int64_t kBlockColumns = kFinishedColumns;
constexpr int64_t kDepth = 256;

}  // namespace

BlockedGemm::BlockedGemm(const Simd& simd, const Format& storage, int64_t m, int64_t n, int64_t k)
    : simd_(simd),
      storage_(storage),
      m_(m),
      n_(n),
      k_(k),
      block_rows_(std::min(kBlockRows, round_up(m, kTileRows))),
      block_columns_(std::min(kBlockColumns, round_up(n, simd.tile_columns))),
      depth_(std::min(kDepth, k)),
      row_blocks_((m + block_rows_ - 1) / block_rows_),
      column_blocks_((n + block_columns_ - 1) / block_columns_) {}

double BlockedGemm::cost() const {
  return 0.05 * static_cast<double>(block_rows_ * block_columns_) * static_cast<double>(k_ + 8);
}

int64_t BlockedGemm::scratch_floats() const {
  return block_rows_ * depth_ + 8 + simd_.tile_columns * depth_ + 9 * depth_ +
         block_rows_ * block_columns_;
}

BlockedGemm::Parts BlockedGemm::parts(float* scratch) const {
  Parts parts;
  parts.sums = scratch;  // first, so that its rows are aligned
  parts.b = parts.sums + block_rows_ * block_columns_;
  parts.rows = parts.b + simd_.tile_columns * depth_;
  parts.a = parts.rows + 9 * depth_;
  return parts;
}

// Rows [row, row + rows) in panels of kTileRows: a[panel][p][i], absent rows zero.
void BlockedGemm::pack_a(const Gemm& gemm, int64_t row, int64_t rows, int64_t at, int64_t depth,
                         const Parts& to) const {
  float* zero = to.rows + 8 * depth;
  std::fill_n(zero, depth, 0.0f);
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const float* source[8];
    for (int i = 0; i < 8; ++i) {
      source[i] = zero;
      if (i >= kTileRows || first + i >= rows) continue;
      source[i] = storage_.read(storage_.at(gemm.a, (*gemm.a_rows)[row + first + i] + at),
                                to.rows + i * depth, depth);
    }
    simd_.transpose8(to.a + first * depth, kTileRows, source, depth);
  }
}

// One strip of columns: b[p][j], absent columns zero.
void BlockedGemm::pack_b(const Gemm& gemm, int64_t column, int64_t columns, int64_t at,
                         int64_t depth, const Parts& to) const {
  const int64_t width = simd_.tile_columns;
  if (!gemm.b_by_columns) {
    for (int64_t p = 0; p < depth; ++p) {
      float* row = to.b + p * width;
      storage_.widen(row, storage_.at(gemm.b, (at + p) * gemm.b_stride + column), columns);
      std::fill(row + columns, row + width, 0.0f);
    }
    return;
  }
  float* zero = to.rows + 8 * depth;
  std::fill_n(zero, depth, 0.0f);
  for (int64_t first = 0; first < width; first += 8) {
    const float* source[8];
    for (int i = 0; i < 8; ++i) {
      const bool absent = first + i >= columns;
      source[i] =
          absent ? zero
                 : storage_.read(storage_.at(gemm.b, (column + first + i) * gemm.b_stride + at),
                                 to.rows + i * depth, depth);
    }
    simd_.transpose8(to.b + first, width, source, depth);
  }
}

void BlockedGemm::compute(const Gemm& gemm, int64_t block, float* scratch) const {
  const Parts to = parts(scratch);
  const int64_t row = block / column_blocks_ * block_rows_, rows = std::min(block_rows_, m_ - row);
  const int64_t column = block % column_blocks_ * block_columns_;
  const int64_t columns = std::min(block_columns_, n_ - column), width = simd_.tile_columns;
  if (k_ == 0) std::fill_n(to.sums, block_rows_ * block_columns_, 0.0f);
  for (int64_t at = 0; at < k_; at += depth_) {
    const int64_t depth = std::min(depth_, k_ - at);
    pack_a(gemm, row, rows, at, depth, to);
    for (int64_t j = 0; j < columns; j += width) {
      pack_b(gemm, column + j, std::min(width, columns - j), at, depth, to);
      for (int64_t i = 0; i < rows; i += kTileRows) {
        simd_.tile(depth, to.a + i * depth, to.b, width, to.sums + i * block_columns_ + j,
                   block_columns_, at > 0);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    finish_row(simd_, storage_, gemm, row + i, column, to.sums + i * block_columns_, columns);
  }
}

void finish_row(const Simd& simd, const Format& storage, const Gemm& gemm, int64_t row,
                int64_t column, float* sums, int64_t columns) {
  const RowFunctions& floats = simd.floats();
  float other[kFinishedColumns];
  if (gemm.alpha != 1) floats.scale(sums, sums, gemm.alpha, columns);
  if (gemm.c) {
    storage.widen(other, storage.at(gemm.c, (*gemm.c_rows)[row] + column), columns);
    if (gemm.beta != 1) floats.scale(other, other, gemm.beta, columns);
    floats.add(sums, sums, other, columns);
  }
  if (gemm.bias) {
    floats.add(sums, sums, storage.read(storage.at(gemm.bias, column), other, columns), columns);
  }
  if (gemm.row_bias) {
    storage.widen(other, storage.at(gemm.row_bias, row), 1);
    floats.apply(Formula::add_scalar, sums, sums, nullptr, columns, other[0]);
  }
  if (gemm.function) floats.apply(formula_of(*gemm.function), sums, sums, nullptr, columns);
  storage.write(storage.at(gemm.out, (*gemm.out_rows)[row] + column), sums, columns);
}

void multiply_rows(const Simd& simd, const Format& storage, const Gemm& gemm, const float* a,
                   int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 64;
  for (int64_t first = begin; first < end; first += kColumns) {
    const int64_t columns = std::min(kColumns, end - first);
    float sums[kGemvRows][kColumns];
    for (int64_t j = 0; j < columns; ++j) {
      const char* row = storage.at(gemm.b, (first + j) * gemm.b_stride);
      double sum[kGemvRows] = {};
      for (int64_t at = 0; at < gemm.k; at += kPiece) {
        float dots[kGemvRows];
        const int64_t n = std::min(kPiece, gemm.k - at);
        storage.rows().dots[gemm.m - 1](dots, a + at, gemm.k, storage.at(row, at), n);
        for (int64_t i = 0; i < gemm.m; ++i) sum[i] += dots[i];
      }
      for (int64_t i = 0; i < gemm.m; ++i) sums[i][j] = static_cast<float>(sum[i]);
    }
    for (int64_t i = 0; i < gemm.m; ++i) {
      finish_row(simd, storage, gemm, i, first, sums[i], columns);
    }
  }
}

}  // namespace plumb::cpu
