// RowSlice: one row of up to a few thousand elements, held by one block and read once.
//
// Thread t owns the vectors t, t + threads, ... of the row, Own of them in registers as float32;
// with Own = 0 (rows too long for that) they are read again each time.
#pragma once

#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

inline constexpr int kMostRowThreads = 512;

template <int N, int Own>
struct RowSlice {
  int64_t columns;
  float kept[Own > 0 ? Own : 1][N];

  // Calls use(column, values) for every vector of this thread. `read(column, values, first)` fills
  // the values; `first`: on the first of several calls of each.
  template <class Read, class Use>
  __device__ void each(bool first, Read read, Use use) {
    const int64_t start = int64_t{thread_index().x} * N, step = int64_t{block_size().x} * N;
    if constexpr (Own > 0) {
      if (first) {
#pragma unroll
        for (int j = 0; j < Own; ++j) {  // all loads before the first use
          if (start + j * step < columns) read(start + j * step, kept[j], true);
        }
      }
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        if (start + j * step < columns) use(start + j * step, kept[j]);
      }
    } else {
      for (int64_t column = start; column < columns; column += step) {
        float v[N];
        read(column, v, first);
        use(column, v);
      }
    }
  }
};

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
