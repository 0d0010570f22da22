// RowSlice: rows of up to a few thousand elements, one after another held by one block, each read
// once.
//
// Thread t owns the vectors t, t + threads, ... of a row, Own of them in registers; with Own = 0
// (rows too long for that) they are read again each time. The next row is on its way while a row is
// reduced and written, so that memory never waits for arithmetic: a grid has as many blocks as the
// GPU holds at once, and each of them takes rows in turn.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {

inline constexpr int kMostRowThreads = 512;

template <class T, int N, int Own, int Inputs>
struct RowSlice {
  int64_t columns;
  const T* rows[Inputs];
  Vector<T, N> ahead[Inputs][Own > 0 ? Own : 1];
  float kept[Own > 0 ? Own : 1][N];

  __device__ explicit RowSlice(int64_t columns) : columns(columns) {}

  __device__ int64_t start() const { return int64_t{thread_index().x} * N; }
  __device__ int64_t step() const { return int64_t{block_size().x} * N; }

  // Makes these the rows to work on; what is kept in registers starts to be read.
  __device__ void fetch(const T* const (&from)[Inputs]) {
#pragma unroll
    for (int i = 0; i < Inputs; ++i) rows[i] = from[i];
    if constexpr (Own > 0) {
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        const int64_t column = start() + j * step();
#pragma unroll
        for (int i = 0; i < Inputs; ++i) {
          if (column < columns) ahead[i][j] = load_vector<N>(from[i] + column);
        }
      }
    }
  }

  // The first pass over the fetched rows: make(column, vectors, values, true) turns the vectors of
  // all inputs into values, use(column, values) uses them. Registers are free for the next fetch.
  template <class Make, class Use>
  __device__ void first(Make make, Use use) {
    if constexpr (Own > 0) {
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        const int64_t column = start() + j * step();
        if (column >= columns) continue;
        Vector<T, N> in[Inputs];
#pragma unroll
        for (int i = 0; i < Inputs; ++i) in[i] = ahead[i][j];
        make(column, in, kept[j], true);
        use(column, kept[j]);
      }
    } else {
      reread(make, use, true);
    }
  }

  // A later pass over the same values.
  template <class Make, class Use>
  __device__ void again(Make make, Use use) {
    if constexpr (Own > 0) {
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        if (start() + j * step() < columns) use(start() + j * step(), kept[j]);
      }
    } else {
      reread(make, use, false);
    }
  }

 private:
  template <class Make, class Use>
  __device__ void reread(Make make, Use use, bool first) {
    for (int64_t column = start(); column < columns; column += step()) {
      Vector<T, N> in[Inputs];
#pragma unroll
      for (int i = 0; i < Inputs; ++i) in[i] = load_vector<N>(rows[i] + column);
      float v[N];
      make(column, in, v, first);
      use(column, v);
    }
  }
};

// Calls each(slice, row, fetch_next) for every row of this block. `at(row, pointers)` says where
// the inputs' rows lie; `each` calls fetch_next() after its first pass.
template <class T, int N, int Own, int Inputs, class At, class Each>
__device__ inline void for_each_row(int64_t count, int64_t columns, At at, Each each) {
  RowSlice<T, N, Own, Inputs> slice(columns);
  const auto fetch = [&](int64_t row) {
    const T* from[Inputs];
    at(row, from);
    slice.fetch(from);
  };
  if (Own > 0 && block_index().x < count) fetch(block_index().x);
  for (int64_t row = block_index().x; row < count; row += grid_size().x) {
    if (Own == 0) fetch(row);
    each(slice, row, [&] {
      if (Own > 0 && row + grid_size().x < count) fetch(row + grid_size().x);
    });
  }
}

// Blocks for so many rows, at most as many as are resident at once, with equal shares.
template <auto Kernel>
unsigned blocks_for_rows(const GpuOps& ops, int64_t rows, unsigned threads) {
  if (rows <= ops.multiprocessors()) return grid_for(rows, 1);
  const int64_t most = ops.multiprocessors() * resident_blocks<Kernel>(threads);
  return grid_for(rows, (rows + most - 1) / most);
}

// Threads and vectors per thread for rows of `columns`, then go.operator()<Wave, N, Own>(threads).
// Several vectors per thread keep more loads in flight and leave fewer threads to reduce over.
template <class T, class Go>
void with_row_slices(GpuOps& ops, int64_t columns, bool vectors, Go go) {
  with_wave(ops.stream(), [&]<int Wave>() {
    const auto launched = [&]<int N>(std::string_view kernel) {
      const int64_t pieces = (columns + N - 1) / N;
      const auto threads = [&](int64_t own) {
        return static_cast<unsigned>(((pieces + own - 1) / own + Wave - 1) / Wave * Wave);
      };
      if (pieces <= Wave && ops.choose(kernel, "own1")) {
        go.template operator()<Wave, N, 1>(threads(1));
      } else if (pieces <= 4 * Wave && ops.choose(kernel, "own2")) {
        go.template operator()<Wave, N, 2>(threads(2));
      } else if (pieces <= 4 * kMostRowThreads && ops.choose(kernel, "own4")) {
        go.template operator()<Wave, N, 4>(threads(4));
      } else if (ops.choose(kernel, "reread")) {
        go.template operator()<Wave, N, 0>(unsigned{kMostRowThreads});
      } else {
        return false;
      }
      return true;
    };
    if (vectors && launched.template operator()<kVector<T>>("vectors")) return;
    if (!launched.template operator()<1>("scalars")) ops.choice().exhausted();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
