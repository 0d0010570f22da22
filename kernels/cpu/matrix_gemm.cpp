// A block's rows are packed for kDepth steps at a time, so that they and the block's sums stay in
// the second-level cache; a strip of the right operand is then multiplied by all of them, from the
// first-level cache. Meanwhile the rows of the next steps are fetched.
#include "kernels/cpu/matrix_gemm.h"

#include <cstring>

#include "kernels/cpu/pair_gemm.h"

namespace plumb::cpu {
MatrixGemm::MatrixGemm(const Simd& simd, const Gemm& shape, bool transposed)
    : simd_(simd),
      transposed_(transposed),
      rows_(transposed ? shape.n : shape.m),
      columns_(transposed ? shape.m : shape.n),
      k_(shape.k),
      steps_(round_up(shape.k, kMatrixStep) / kMatrixStep),
      // Smaller where there are few: threads share the blocks.
      block_rows_(std::min(rows_ < 4 * kBlockRows ? kBlockRows / 2 : kBlockRows,
                           round_up(rows_, kMatrixSide))),
      block_columns_(std::min(kBlockColumns, round_up(columns_, kMatrixSide))),
      row_blocks_(round_up(rows_, block_rows_) / block_rows_),
      column_blocks_(round_up(columns_, block_columns_) / block_columns_) {}

double MatrixGemm::panel_cost() const { return 0.1 * static_cast<double>(strip_words()); }

double MatrixGemm::block_cost() const {
  return 0.003 * static_cast<double>(block_rows_ * block_columns_) * static_cast<double>(k_ + 32);
}

int64_t MatrixGemm::scratch_words() const {
  const int64_t rows = block_rows_ * std::min(kDepth, steps_) * (kMatrixStep / 2);
  const int64_t sums = steps_ > kDepth ? block_rows_ * block_columns_ : 0;
  return std::max(rows + sums, round_up(9 * kPiecePairs, kMatrixStep));
}

void MatrixGemm::pack(const Gemm& gemm, int64_t panel, float* packed, float* scratch) const {
  const int64_t column = panel * kMatrixSide,
                columns = std::min<int64_t>(kMatrixSide, columns_ - column);
  float* strip = packed + panel * strip_words();
  const int64_t pairs = pairs_of(k_), all_pairs = steps_ * (kMatrixStep / 2);
  std::fill(strip + pairs * kMatrixSide, strip + all_pairs * kMatrixSide, 0.0f);
  if (!gemm.b_by_columns) {
    const char* from = gemm.b + column * 2;
    for (int64_t p = 0; p < pairs; ++p, from += 4 * gemm.b_stride) {
      const char* odd = 2 * p + 1 < k_ ? from + 2 * gemm.b_stride : nullptr;
      simd_.matrix->interleave(reinterpret_cast<uint32_t*>(strip + p * kMatrixSide), from, odd,
                               columns);
    }
    return;
  }
  const auto start = [&](int64_t j) {
    return transposed_ ? gemm.a + (*gemm.a_rows)[gemm.first_row + column + j] * 2
                       : gemm.b + (column + j) * gemm.b_stride * 2;
  };
  for (int64_t p = 0; p < pairs; p += kPiecePairs) {
    const int64_t elements = std::min(2 * kPiecePairs, k_ - 2 * p);
    for (int64_t j = 0; j < kMatrixSide; j += 8) {
      pack_pairs(simd_, strip + p * kMatrixSide + j, kMatrixSide, columns - j, elements, scratch,
                 [&](int64_t i) { return start(j + i) + 4 * p; });
    }
  }
}

const char* MatrixGemm::left_row(const Gemm& gemm, int64_t row) const {
  return transposed_ ? gemm.b + row * gemm.b_stride * 2
                     : gemm.a + (*gemm.a_rows)[gemm.first_row + row] * 2;
}

// Tiles need whole steps at equal distances.
bool MatrixGemm::reads_rows_in_place(const Gemm& gemm) const {
  return columns_ <= kFewColumns && k_ % kMatrixStep == 0 &&
         (transposed_ || gemm.a_rows->uniform());
}

void MatrixGemm::copy_rows(const Gemm& gemm, const Part& part, int64_t first, int64_t rows) const {
  const int64_t elements = std::min(part.steps * kMatrixStep, k_ - part.step * kMatrixStep);
  for (int64_t i = first; i < first + round_up(rows, kMatrixSide); ++i) {
    char* out = part.left + i / kMatrixSide * part.steps * kMatrixStepBytes +
                i % kMatrixSide * kMatrixStep * 2;
    const bool absent = i >= part.rows;
    const char* row = absent ? out : left_row(gemm, part.row + i) + part.step * kMatrixStep * 2;
    simd_.matrix->copy_row(out, row, absent ? 0 : elements, part.steps);
  }
}

// Each of the part's products brings two rows of the next steps closer.
void MatrixGemm::look_ahead(const Gemm& gemm, const Part& part, int64_t call,
                            MatrixTile& tile) const {
  const int64_t next = part.step + part.steps;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t row = 2 * call + i;
    tile.ahead[i] = row < part.rows && next < steps_
                        ? left_row(gemm, part.row + row) + next * kMatrixStep * 2
                        : tile.a;
  }
}

// Sums of the block at row i and column j of the part; rounded to the output after the last step.
void MatrixGemm::multiply(const Gemm& gemm, const Part& part, int64_t i, int64_t j,
                          MatrixTile& tile) const {
  if (part.step + part.steps < steps_) return simd_.matrix->multiply(tile);
  tile.rows = std::min<int64_t>(kMatrixSide, part.rows - i);
  tile.columns = std::min<int64_t>(kMatrixSide, part.columns - j);
  tile.transposed = transposed_;
  const int64_t row = part.row + i, column = part.column + j;
  const int64_t out_row = gemm.first_row + (transposed_ ? column : row);
  const int64_t out_column = transposed_ ? row : column;
  const int64_t out_rows = transposed_ ? tile.columns : tile.rows;
  const int64_t out_columns = transposed_ ? tile.rows : tile.columns;
  float bias[kMatrixSide] = {};
  if (gemm.bias) {
    simd_.rows[kBf16].widen(bias, gemm.bias + out_column * 2, out_columns);
    tile.bias = bias;
  }
  const auto out = [&](int64_t r) {
    return gemm.out + ((*gemm.out_rows)[out_row + r] + out_column) * 2;
  };
  uint16_t kept[kSumsBlock];
  const bool direct = gemm.out_rows->uniform();
  tile.out = direct ? reinterpret_cast<uint16_t*>(out(0)) : kept;
  tile.out_stride = direct ? gemm.out_rows->stride() : kMatrixSide;
  simd_.matrix->multiply(tile);
  for (int64_t r = 0; !direct && r < out_rows; ++r) {
    std::memcpy(out(r), kept + r * kMatrixSide, static_cast<size_t>(2 * out_columns));
  }
}

void MatrixGemm::add_products(const Gemm& gemm, const Part& part, const float* packed) const {
  const bool in_place = reads_rows_in_place(gemm);
  if (!in_place) copy_rows(gemm, part, 0, part.rows);
  else copy_rows(gemm, part, part.rows / kMatrixSide * kMatrixSide, part.rows % kMatrixSide);
  const int64_t panels = round_up(part.rows, kMatrixSide) / kMatrixSide;
  for (int64_t j = 0, call = 0; j < part.columns; j += kMatrixSide) {
    const float* strip =
        packed + (part.column + j) / kMatrixSide * strip_words() + part.step * kMatrixStepBytes / 4;
    for (int64_t panel = 0; panel < panels; ++panel, ++call) {
      const int64_t i = panel * kMatrixSide;
      MatrixTile tile{};
      tile.steps = part.steps;
      tile.a = part.left + panel * part.steps * kMatrixStepBytes;
      tile.a_stride = kMatrixStep * 2;
      tile.a_step = kMatrixStepBytes;
      look_ahead(gemm, part, call, tile);
      if (in_place && i + kMatrixSide <= part.rows) {
        tile.a = left_row(gemm, part.row + i) + part.step * kMatrixStep * 2;
        tile.a_stride = 2 * (transposed_ ? gemm.b_stride : gemm.a_rows->stride());
        tile.a_step = kMatrixStep * 2;
      }
      tile.b = reinterpret_cast<const uint32_t*>(strip);
      tile.sums = part.sums + call * kSumsBlock;
      tile.sums_stride = kMatrixSide;
      tile.accumulate = part.step > 0;
      multiply(gemm, part, i, j, tile);
    }
  }
}

void MatrixGemm::compute(const Gemm& gemm, int64_t block, const float* packed,
                         float* scratch) const {
  const MatrixUse use(*simd_.matrix);
  Part part{};
  part.row = block / column_blocks_ * block_rows_;
  part.rows = std::min(block_rows_, rows_ - part.row);
  part.column = block % column_blocks_ * block_columns_;
  part.columns = std::min(block_columns_, columns_ - part.column);
  part.left = reinterpret_cast<char*>(scratch);
  part.sums = scratch + block_rows_ * std::min(kDepth, steps_) * (kMatrixStep / 2);
  for (; part.step == 0 || part.step < steps_; part.step += kDepth) {  // once for an empty sum, too
    part.steps = std::min(kDepth, steps_ - part.step);
    add_products(gemm, part, packed);
  }
}

}  // namespace plumb::cpu
