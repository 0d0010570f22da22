// The tiled product that always builds: of matrices, and of what convolutions take.
//
// A block of 256 threads makes a 64 x 64 tile of out = a b, each thread 4 x 4 of it; slices of 16
// of the inner axis pass through shared memory as float32. Sums run over k in order.
//
// Operands have rows, columns, inner, batches; of(z) is the z-th product, whose left(row, k) and
// right(k, column) are elements and whose finish(row, column, sum) rounds and stores;
// right_along_inner(): neighbours along k are neighbours in memory.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace product_detail {

inline constexpr int kTile = 64, kDepth = 16, kThreads = 256, kOwn = 4;

struct Tiles {
  float a[kDepth][kTile + 4];
  float b[kDepth][kTile + 4];
};

template <class Operands>
__global__ void __launch_bounds__(kThreads) product_tiles(Operands p) {
  wait_for_previous_kernel();
  Tiles& tiles = block_shared<Tiles>();
  const int t = static_cast<int>(thread_index().x);
  const int64_t column_tiles = (p.columns + kTile - 1) / kTile;
  const int64_t row_tiles = (p.rows + kTile - 1) / kTile;
  const int64_t total = column_tiles * row_tiles * p.batches;
  for (int64_t tile = block_index().x; tile < total; tile += grid_size().x) {
    const int64_t column0 = tile % column_tiles * kTile;
    const int64_t row0 = tile / column_tiles % row_tiles * kTile;
    const auto product = p.of(tile / column_tiles / row_tiles);
    float sum[kOwn][kOwn] = {};
    for (int64_t k0 = 0; k0 < p.inner; k0 += kDepth) {
      block_barrier();  // the slices of the previous round have been used
      for (int i = t; i < kTile * kDepth; i += kThreads) {
        const int k = i % kDepth, r = i / kDepth;
        const bool inside = row0 + r < p.rows && k0 + k < p.inner;
        tiles.a[k][r] = inside ? product.left(row0 + r, k0 + k) : 0.0f;
      }
      for (int i = t; i < kTile * kDepth; i += kThreads) {
        // Neighbouring threads read along b's contiguous axis.
        const int k = p.right_along_inner() ? i % kDepth : i / kTile;
        const int c = p.right_along_inner() ? i / kDepth : i % kTile;
        const bool inside = column0 + c < p.columns && k0 + k < p.inner;
        tiles.b[k][c] = inside ? product.right(k0 + k, column0 + c) : 0.0f;
      }
      block_barrier();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float left[kOwn], right[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          left[i] = tiles.a[k][t / 16 * kOwn + i];
          right[i] = tiles.b[k][t % 16 + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int j = 0; j < kOwn; ++j)
            sum[i][j] = fused_multiply_add(left[i], right[j], sum[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t row = row0 + t / 16 * kOwn + i;
      if (row >= p.rows) break;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int64_t column = column0 + t % 16 + 16 * j;
        if (column < p.columns) product.finish(row, column, sum[i][j]);
      }
    }
  }
}

}  // namespace product_detail

template <class Operands>
void launch_product_tiles(const char* op, Stream stream, const Operands& p) {
  constexpr int64_t kSide = product_detail::kTile;
  const int64_t tiles =
      (p.columns + kSide - 1) / kSide * ((p.rows + kSide - 1) / kSide) * p.batches;
  launch_overlapped<product_detail::product_tiles<Operands>>(
      op, {grid_for(tiles, 1)}, {product_detail::kThreads}, 0, stream, p);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
