// Our own product of bf16 matrices where the processor multiplies pairs of bf16: float32 sums.
#pragma once

#include "kernels/cpu/blocked_gemm.h"

namespace plumb::cpu {

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
