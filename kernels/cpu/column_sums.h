// Sums by column of rows that threads share: in float32, the rows of a block in order, then the
// blocks, so that their bits do not depend on the threads.
#pragma once

#include "kernels/core/arena.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/rows.h"

namespace plumb::cpu {

// rows: how many there are; `sums` of `columns` each, of every block.
class ColumnSums {
 public:
  ColumnSums(Arena& arena, int64_t rows, int64_t columns, int64_t sums = 1)
      : rows_(rows),
        columns_(columns),
        per_block_(std::max<int64_t>(1, (rows + kMostBlocks - 1) / kMostBlocks)),
        blocks_(std::max<int64_t>(1, (rows + per_block_ - 1) / per_block_)),
        partial_(arena.take(DType::f32, {sums, blocks_, std::max<int64_t>(1, columns)})) {}

  int64_t blocks() const { return blocks_; }
  int64_t rows_of_block() const { return std::min(per_block_, rows_); }
  // Calls visit(row) for the rows of a block, whose sums are set to 0 before.
  template <class Visit>
  void each_row(int64_t block, Visit visit) const {
    for (int64_t i = 0; i < partial_.dim(0); ++i) std::fill_n(at(i, block), columns_, 0.0f);
    const int64_t end = std::min(rows_, (block + 1) * per_block_);
    for (int64_t row = block * per_block_; row < end; ++row) visit(row);
  }
  float* at(int64_t sum, int64_t block) const {
    return partial_.data<float>() + (sum * blocks_ + block) * partial_.dim(2);
  }
  // R() of a sum over all blocks.
  void write(ThreadPool& pool, const Simd& simd, const Tensor& to, int64_t sum = 0) const {
    const Format storage(simd, to.dtype());
    const int64_t pieces = (columns_ + kPiece - 1) / kPiece;
    const auto cost = 0.3 * static_cast<double>(blocks_ * std::min(kPiece, columns_));
    pool.for_each(pieces, cost, [&](int64_t piece, int) {
      const int64_t begin = piece * kPiece, n = std::min(kPiece, columns_ - begin);
      float* total = at(sum, 0) + begin;
      for (int64_t block = 1; block < blocks_; ++block) {
        simd.floats().add(total, total, at(sum, block) + begin, n);
      }
      storage.rows().narrow(storage.at(to.data<char>(), begin), total, n);
    });
  }

 private:
  static constexpr int64_t kMostBlocks = 64;
  const int64_t rows_, columns_, per_block_, blocks_;
  const Tensor partial_;  // [sums, blocks, columns]
};

}  // namespace plumb::cpu
