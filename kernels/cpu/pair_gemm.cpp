// Two neighbours along k are one 32-bit word, so that rows of bf16 are packed as rows of words are:
// nothing is widened. Blocking as in blocked_gemm.cpp, but a is packed once for all blocks.
#include "kernels/cpu/pair_gemm.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kBlockRows = 64 * kPairRows;
constexpr int64_t kBlockColumns = 128;
constexpr int64_t kDepth = 256;  // pairs: a strip of b stays in the first-level cache

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

const uint32_t* words(const float* p) { return reinterpret_cast<const uint32_t*>(p); }

}  // namespace

PairGemm::PairGemm(const Simd& simd, int64_t m, int64_t n, int64_t k)
    : simd_(simd),
      m_(m),
      n_(n),
      k_(k),
      pairs_(pairs_of(k)),
      block_rows_(std::min(kBlockRows, round_up(m, kPairRows))),
      block_columns_(std::min(kBlockColumns, round_up(n, simd.tile_columns))),
      row_blocks_(ceil_div(m, block_rows_)),
      column_blocks_(ceil_div(n, block_columns_)) {}

double PairGemm::panel_cost() const { return 0.2 * static_cast<double>(panel_words()); }

double PairGemm::block_cost() const {
  return 0.02 * static_cast<double>(block_rows_ * block_columns_) * static_cast<double>(k_ + 8);
}

int64_t PairGemm::scratch_words() const {
  const int64_t strip_and_lines = (simd_.tile_columns + 9) * kDepth;
  return std::max(block_rows_ * block_columns_ + strip_and_lines, 9 * pairs_);
}

void PairGemm::pack(const Gemm& gemm, int64_t panel, float* packed, float* scratch) const {
  const int64_t row = panel * kPairRows;
  pack_pairs(simd_, packed + panel * panel_words(), kPairRows, m_ - row, k_, scratch,
             [&](int64_t i) { return gemm.a + (*gemm.a_rows)[gemm.first_row + row + i] * 2; });
}

// One strip of columns: b[p][j] as words, absent columns zero.
void PairGemm::pack_columns(const Gemm& gemm, int64_t column, int64_t columns, int64_t at,
                            int64_t pairs, float* strip, float* rows) const {
  const int64_t width = simd_.tile_columns, elements = std::min(2 * pairs, k_ - 2 * at);
  if (gemm.b_by_columns) {
    for (int64_t j = 0; j < width; j += 8) {
      pack_pairs(simd_, strip + j, width, columns - j, elements, rows, [&](int64_t i) {
        return gemm.b + ((column + j + i) * gemm.b_stride + 2 * at) * 2;
      });
    }
    return;
  }
  for (int64_t p = 0; p < pairs; ++p) {
    uint16_t pair[2][kMaxTileColumns] = {};
    const char* from = gemm.b + ((2 * at + 2 * p) * gemm.b_stride + column) * 2;
    std::memcpy(pair[0], from, static_cast<size_t>(2 * columns));
    if (2 * p + 1 < elements) {
      std::memcpy(pair[1], from + 2 * gemm.b_stride, static_cast<size_t>(2 * columns));
    }
    uint32_t line[kMaxTileColumns];
    for (int64_t j = 0; j < kMaxTileColumns; ++j) {
      line[j] = pair[0][j] | static_cast<uint32_t>(pair[1][j]) << 16;
    }
    std::memcpy(strip + p * width, line, static_cast<size_t>(4 * width));
  }
}

void PairGemm::finish(const Gemm& gemm, int64_t row, int64_t rows, int64_t column, int64_t columns,
                      float* sums) const {
  const Format storage(simd_, DType::bf16);
  for (int64_t i = 0; i < rows; ++i, sums += block_columns_) {
    finish_row(simd_, storage, gemm, gemm.first_row + row + i, column, sums, columns);
  }
}

void PairGemm::compute(const Gemm& gemm, int64_t block, const float* packed, float* scratch) const {
  const int64_t row = block / column_blocks_ * block_rows_, rows = std::min(block_rows_, m_ - row);
  const int64_t column = block % column_blocks_ * block_columns_;
  const int64_t columns = std::min(block_columns_, n_ - column), width = simd_.tile_columns;
  const bool direct = !gemm.bias && gemm.only_adds_bias() &&
                      gemm.out_rows->uniform();  // without a pass over the sums
  char* first_out = gemm.out + ((*gemm.out_rows)[gemm.first_row + row] + column) * 2;
  const int64_t out_stride = gemm.out_rows->stride();
  float* strip = scratch;
  float* lines = strip + width * kDepth;
  float* sums = lines + 9 * kDepth;
  for (int64_t at = 0; at == 0 || at < pairs_; at += kDepth) {  // once for an empty sum, too
    const int64_t pairs = std::min(kDepth, pairs_ - at);
    const bool last = at + pairs == pairs_;
    for (int64_t j = 0; j < columns; j += width) {
      pack_columns(gemm, column + j, std::min(width, columns - j), at, pairs, strip, lines);
      for (int64_t i = 0; i < rows; i += kPairRows) {
        char* out = direct && last ? first_out + (i * out_stride + j) * 2 : nullptr;
        simd_.pair_tile({pairs, words(packed + (row + i) * pairs_ + at * kPairRows), words(strip),
                         sums + i * block_columns_ + j, block_columns_, at > 0,
                         reinterpret_cast<uint16_t*>(out), out_stride,
                         std::min<int64_t>(kPairRows, rows - i), std::min(width, columns - j)});
      }
    }
  }
  if (!direct) finish(gemm, row, rows, column, columns, sums);
}

}  // namespace plumb::cpu
