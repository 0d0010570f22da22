// sdpa of bf16 where the processor has a matrix unit.
#pragma once

#include "kernels/cpu/sdpa_heads.h"

namespace plumb::cpu {

// A unit of work is a block of rows of one key-value head, as in sdpa.cpp.
class MatrixAttention {
 public:
  explicit MatrixAttention(const SdpaHeads& heads);

  int64_t units() const { return heads_.blocks(block_rows_); }
  double cost() const;             // of a unit, in units of ThreadPool::for_each
  int64_t scratch_floats() const;  // that one thread needs, at an address divisible by 64
  void compute(int64_t unit, float* scratch) const;

 private:
  static constexpr int64_t kSide = kMatrixSide, kStep = kMatrixStep;
  static constexpr int64_t kBlockRows = 4 * kSide, kBlockKeys = 4 * kSide;
  static constexpr int64_t kStepFloats = kMatrixStepBytes / 4;  // of a packed step's 32-bit words

  struct Block;
  struct Panel;
  Block lay_out(int64_t unit, float* scratch) const;
  void pack_queries(const Block&) const;
  void pack_keys(const Block&, int64_t begin, int64_t n) const;
  bool pack_values(const Block&, int64_t begin, int64_t n) const;
  void multiply_keys(const Block&, const Panel&) const;
  void weigh(Block&, const Panel&, int64_t row) const;
  void multiply_values(const Block&, const Panel&) const;
  void multiply_infinite_values(const Block&, const Panel&) const;
  void add_keys(Block&, int64_t begin, int64_t n) const;

  const SdpaHeads& heads_;
  const Simd& simd_;
  const MatrixUnit& unit_;
  // Whether a row's weights follow from its products and a range of keys alone.
  const bool plain_;
  const int64_t dim_steps_, value_strips_;
  const int64_t block_rows_, block_keys_;
};

}  // namespace plumb::cpu
