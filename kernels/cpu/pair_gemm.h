// Our own product of bf16 matrices where the processor multiplies pairs of bf16: float32 sums.
#pragma once

#include <cstring>

#include "kernels/cpu/blocked_gemm.h"

namespace plumb::cpu {

inline constexpr int64_t pairs_of(int64_t elements) { return (elements + 1) / 2; }

// Up to 8 rows of bf16 side by side as words of two: out[p * stride + i] for i < 8, absent rows
// zero; row(i) says where they start. `lines` has room for nine rows of words.
template <class Row>
void pack_pairs(const Simd& simd, float* out, int64_t stride, int64_t count, int64_t elements,
                float* lines, const Row& row) {
  const int64_t pairs = pairs_of(elements);
  const float* sources[8];
  for (int64_t i = 0; i < 8; ++i, lines += pairs) {
    sources[i] = lines;
    if (i >= count) {
      std::fill_n(lines, pairs, 0.0f);
    } else if (elements % 2 == 0) {
      sources[i] = reinterpret_cast<const float*>(row(i));
    } else {
      lines[pairs - 1] = 0;  // pads an odd last element
      std::memcpy(lines, row(i), static_cast<size_t>(2 * elements));
    }
  }
  simd.transpose8(out, stride, sources, pairs);
}

// All of a is packed first, panel by panel; then the output is cut into blocks by its shape alone,
// each computed by one thread, so that no result depends on the number of threads.
class PairGemm {
 public:
  PairGemm(const Simd& simd, int64_t m, int64_t n, int64_t k);
  static bool multiplies(const Simd& simd, DType dtype) {
    return simd.pair_tile && dtype == DType::bf16;
  }

  int64_t panels() const { return (m_ + kPairRows - 1) / kPairRows; }
  int64_t packed_words() const { return panels() * panel_words(); }
  int64_t blocks() const { return row_blocks_ * column_blocks_; }
  int64_t scratch_words() const;  // that one thread needs, in either step
  double panel_cost() const;      // in units of ThreadPool::for_each
  double block_cost() const;

  // `packed` and `scratch` are memory of 32-bit words.
  void pack(const Gemm& gemm, int64_t panel, float* packed, float* scratch) const;
  void compute(const Gemm& gemm, int64_t block, const float* packed, float* scratch) const;

 private:
  int64_t panel_words() const { return kPairRows * pairs_; }
  void pack_columns(const Gemm&, int64_t column, int64_t columns, int64_t at, int64_t pairs,
                    float* strip, float* rows) const;
  void finish(const Gemm&, int64_t row, int64_t rows, int64_t column, int64_t columns,
              float* sums) const;

  const Simd& simd_;
  const int64_t m_, n_, k_, pairs_;
  const int64_t block_rows_, block_columns_, row_blocks_, column_blocks_;
};

}  // namespace plumb::cpu
