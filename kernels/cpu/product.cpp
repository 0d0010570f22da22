// Blocking after Goto and van de Geijn (2008), one level simpler: a block of out keeps its float32
// sums; for every slice of k, the rows of a are packed once (they stay in the second-level cache)
// and b is packed one strip of tile_columns at a time (first level).
#include "kernels/cpu/product.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBlockRows = 32 * kTileRows;
constexpr int64_t kBlockColumns = 256;
constexpr int64_t kDepth = 256;

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace

BlockedProduct::BlockedProduct(const Simd& simd, const Format& storage, int64_t m, int64_t n,
                               int64_t k)
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

double BlockedProduct::cost() const {
  return 0.05 * static_cast<double>(block_rows_ * block_columns_) * static_cast<double>(k_ + 8);
}

int64_t BlockedProduct::scratch_floats() const {
  return block_rows_ * depth_ + 8 + simd_.tile_columns * depth_ + 9 * depth_ +
         block_rows_ * block_columns_;
}

BlockedProduct::Parts BlockedProduct::parts(float* scratch) const {
  Parts parts;
  parts.sums = scratch;  // first, so that its rows are aligned
  parts.b = parts.sums + block_rows_ * block_columns_;
  parts.rows = parts.b + simd_.tile_columns * depth_;
  parts.a = parts.rows + 9 * depth_;
  return parts;
}

// Rows [row, row + rows) in panels of kTileRows: a[panel][p][i], absent rows zero.
void BlockedProduct::pack_a(const Product& product, int64_t row, int64_t rows, int64_t at,
                            int64_t depth, const Parts& to) const {
  float* zero = to.rows + 8 * depth;
  std::fill_n(zero, depth, 0.0f);
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const float* source[8];
    for (int i = 0; i < 8; ++i) {
      source[i] = zero;
      if (i >= kTileRows || first + i >= rows) continue;
      source[i] = storage_.read(storage_.at(product.a, (*product.a_rows)[row + first + i] + at),
                                to.rows + i * depth, depth);
    }
    simd_.transpose8(to.a + first * depth, kTileRows, source, depth);
  }
}

// One strip of columns: b[p][j], absent columns zero.
void BlockedProduct::pack_b(const Product& product, int64_t column, int64_t columns, int64_t at,
                            int64_t depth, const Parts& to) const {
  const int64_t width = simd_.tile_columns;
  if (!product.b_by_columns) {
    for (int64_t p = 0; p < depth; ++p) {
      float* row = to.b + p * width;
      storage_.widen(row, storage_.at(product.b, (at + p) * product.b_stride + column), columns);
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
      source[i] = absent ? zero
                         : storage_.read(
                               storage_.at(product.b, (column + first + i) * product.b_stride + at),
                               to.rows + i * depth, depth);
    }
    simd_.transpose8(to.b + first, width, source, depth);
  }
}

void BlockedProduct::compute(const Product& product, int64_t block, float* scratch) const {
  const Parts to = parts(scratch);
  const int64_t row = block / column_blocks_ * block_rows_, rows = std::min(block_rows_, m_ - row);
  const int64_t column = block % column_blocks_ * block_columns_;
  const int64_t columns = std::min(block_columns_, n_ - column), width = simd_.tile_columns;
  if (k_ == 0) std::fill_n(to.sums, block_rows_ * block_columns_, 0.0f);
  for (int64_t at = 0; at < k_; at += depth_) {
    const int64_t depth = std::min(depth_, k_ - at);
    pack_a(product, row, rows, at, depth, to);
    for (int64_t j = 0; j < columns; j += width) {
      pack_b(product, column + j, std::min(width, columns - j), at, depth, to);
      for (int64_t i = 0; i < rows; i += kTileRows) {
        simd_.tile(depth, to.a + i * depth, to.b, width, to.sums + i * block_columns_ + j,
                   block_columns_, at > 0);
      }
    }
  }
  float bias[kMaxTileColumns];
  for (int64_t i = 0; i < rows; ++i) {
    float* sums = to.sums + i * block_columns_;
    if (product.bias) {
      for (int64_t j = 0; j < columns; j += width) {
        const int64_t n = std::min(width, columns - j);
        simd_.rows[kF32].add(sums + j, sums + j,
                             storage_.read(storage_.at(product.bias, column + j), bias, n), n);
      }
    }
    storage_.write(storage_.at(product.out, (*product.out_rows)[row + i] + column), sums, columns);
  }
}

void multiply_rows(const Simd& simd, const Format& storage, const Product& product, const float* a,
                   int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 64;
  for (int64_t first = begin; first < end; first += kColumns) {
    const int64_t columns = std::min(kColumns, end - first);
    float sums[kFewRows][kColumns], bias[kColumns];
    for (int64_t j = 0; j < columns; ++j) {
      const char* row = storage.at(product.b, (first + j) * product.b_stride);
      double sum[kFewRows] = {};
      for (int64_t at = 0; at < product.k; at += kPiece) {
        float buffer[kPiece];
        const int64_t n = std::min(kPiece, product.k - at);
        const float* piece = storage.read(storage.at(row, at), buffer, n);
        for (int64_t i = 0; i < product.m; ++i)
          sum[i] += simd.dot(a + i * product.k + at, piece, n);
      }
      for (int64_t i = 0; i < product.m; ++i) sums[i][j] = static_cast<float>(sum[i]);
    }
    for (int64_t i = 0; i < product.m; ++i) {
      if (product.bias) {
        simd.rows[kF32].add(sums[i], sums[i],
                            storage.read(storage.at(product.bias, first), bias, columns), columns);
      }
      storage.write(storage.at(product.out, (*product.out_rows)[i] + first), sums[i], columns);
    }
  }
}

}  // namespace plumb::cpu
