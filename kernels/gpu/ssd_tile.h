// Products of tiles for the Mamba2 scan in chunks: 64 x 64 by a block of 128 threads, each 8 x 4,
// slices of 32 of the inner axis passing through shared memory as float32.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR::ssd {

inline constexpr int kTile = 64, kDepth = 32, kThreads = 128;
inline constexpr int kOwnRows = 8, kOwnColumns = 4;
inline constexpr int kAcross = kTile / kOwnColumns;  // threads that share rows
static_assert(kTile / kOwnRows * kAcross == kThreads);

// One operand, [inner][row or column]; rows of it stay aligned and start in different banks.
struct alignas(16) Slice {
  float v[kDepth][kTile + 4];
};
struct LeftSlice : Slice {};
struct RightSlice : Slice {};

template <int N>
struct Some {
  float v[N] = {};
};

// N neighbours as floats, or zeros. One path out: two would meet in memory, not in registers.
template <int N, class T>
__device__ inline Some<N> load_floats(bool inside, const T* from) {
  Vector<T, N> read{};
  if (inside) read = load_vector<N>(from);
  Some<N> out;
  widen(read, out.v);
  return out;
}

// The tile's elements of this thread.
struct Sums {
  float v[kOwnRows][kOwnColumns] = {};

  static __device__ int row() { return static_cast<int>(thread_index().x) / kAcross * kOwnRows; }
  static __device__ int column() {
    return static_cast<int>(thread_index().x) % kAcross * kOwnColumns;
  }
  // += left right for one slice.
  __device__ void multiply(const Slice& left, const Slice& right) {
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
      const auto low = load_vector<4>(left.v[k] + row()),
                 high = load_vector<4>(left.v[k] + row() + 4);
      const auto b = load_vector<4>(right.v[k] + column());
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const float a = i < 4 ? low[i % 4] : high[i % 4];
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) v[i][j] = fused_multiply_add(a, b[j], v[i][j]);
      }
    }
  }
};

// Fills a slice with f(inner, outer), which gives N neighbours along the outer axis.
template <int N, class F>
__device__ inline void fill_along(Slice& slice, F f) {
  constexpr int kPerRow = kTile / N, kStored = N < 4 ? N : 4;
#pragma unroll 2
  for (int i = static_cast<int>(thread_index().x); i < kDepth * kPerRow; i += kThreads) {
    const int inner = i / kPerRow, outer = i % kPerRow * N;
    const Some<N> x = f(inner, outer);
#pragma unroll
    for (int j = 0; j < N; j += kStored) {
      Vector<float, kStored> part;
#pragma unroll
      for (int k = 0; k < kStored; ++k) part[k] = x.v[j + k];
      store_vector(slice.v[inner] + outer + j, part);
    }
  }
}

// The same for neighbours along the inner axis.
template <int N, class F>
__device__ inline void fill_across(Slice& slice, F f) {
#pragma unroll 2
  for (int i = static_cast<int>(thread_index().x); i < kDepth / N * kTile; i += kThreads) {
    const int inner = i / kTile * N, outer = i % kTile;
    const Some<N> x = f(inner, outer);
#pragma unroll
    for (int j = 0; j < N; ++j) slice.v[inner + j][outer] = x.v[j];
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR::ssd
