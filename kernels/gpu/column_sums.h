// Sums by column of rows that blocks share, in float32: a block sums its rows in order, then
// add_column_sums() the blocks, kParts neighbours each and then these. Which rows a block has
// depends on their number alone, so that the bits are those of any device.
#pragma once

#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct SharedRows {
  int64_t rows, of_block, blocks;

  explicit SharedRows(int64_t count)
      : rows(count),
        of_block((count + kMostBlocks - 1) / kMostBlocks),
        blocks(of_block > 0 ? (count + of_block - 1) / of_block : 0) {}
  __host__ __device__ int64_t begin(int64_t block) const { return block * of_block; }
  __host__ __device__ int64_t end(int64_t block) const {
    const int64_t last = (block + 1) * of_block;
    return last < rows ? last : rows;
  }

 private:
  static constexpr int64_t kMostBlocks = 264;  // two of every multiprocessor of an H200
};

namespace column_sums {

inline constexpr unsigned kColumns = 32, kParts = 16;

struct Partial {
  float of_part[kParts][kColumns];
};

// partial [blocks, columns], out [columns] with a stride.
template <class T>
__global__ void __launch_bounds__(kColumns* kParts)
    add(T* out, int64_t stride, const float* partial, int64_t blocks, int64_t columns) {
  wait_for_previous_kernel();
  auto& sums = block_shared<Partial>();
  const unsigned lane = thread_index().x % kColumns, part = thread_index().x / kColumns;
  const int64_t column = int64_t{block_index().x} * kColumns + lane;
  const int64_t per_part = (blocks + kParts - 1) / kParts, begin = part * per_part;
  const int64_t end = begin + per_part < blocks ? begin + per_part : blocks;
  float sum = 0;
  if (column < columns) {
    for (int64_t block = begin; block < end; ++block) sum += partial[block * columns + column];
  }
  sums.of_part[part][lane] = sum;
  block_barrier();
  if (part != 0 || column >= columns) return;
  for (unsigned i = 1; i < kParts; ++i) sum += sums.of_part[i][lane];
  out[column * stride] = from_float<T>(sum);
}

}  // namespace column_sums

// out[column] = R(sum over blocks), 0 of no blocks; `stride` of out in elements.
template <class T>
void add_column_sums(GpuOps& ops, const char* op, T* out, int64_t stride, const float* partial,
                     int64_t blocks, int64_t columns) {
  if (columns == 0) return;
  launch_overlapped<column_sums::add<T>>(op, {grid_for(columns, column_sums::kColumns)},
                                         {column_sums::kColumns * column_sums::kParts}, 0,
                                         ops.stream(), out, stride, partial, blocks, columns);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
