// RowSlice: one row of up to a few thousand elements, held by one block and read once.
//
// Thread t owns the vectors t, t + threads, ... of the row, Own of them in registers as they are in
// memory: the fewer registers, the more rows a multiprocessor has on their way. With Own = 0 (rows
// too long for that) they are read again each time.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {

inline constexpr int kMostRowThreads = 512;

// Full: all threads own Own vectors, nothing needs to be asked.
template <class T, int N, int Own, bool Full = false>
struct RowSlice {
  using Index = std::conditional_t<(Own > 0), int, int64_t>;
  Index columns;
  Vector<T, N> kept[Own > 0 ? Own : 1];

  __device__ explicit RowSlice(int64_t columns_of_row)
      : columns(static_cast<Index>(columns_of_row)) {}

  __device__ Index column(int j) const {
    return (static_cast<Index>(thread_index().x) + j * static_cast<Index>(block_size().x)) * N;
  }

  // How many elements this thread's wave owns.
  template <int Wave>
  __device__ float count_of_wave() const {
    if constexpr (Full) return static_cast<float>(Own * N * Wave);
    const Index lane = static_cast<Index>(thread_index().x % Wave) * N;
    Index count = 0;
    for (int j = 0; column(j) - lane < columns; ++j) {
      const Index left = columns - (column(j) - lane);
      count += left < Wave * N ? left : Wave * N;
    }
    return static_cast<float>(count);
  }

  // Starts to read what is kept: all loads before the first use.
  __device__ void load(const T* row) {
    if constexpr (Own > 0) {
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        if (Full || column(j) < columns) kept[j] = load_vector<N>(row + column(j));
      }
    }
  }

  // The j-th vector of this thread.
  __device__ Vector<T, N> at(const T* row, int j) const {
    if constexpr (Own > 0) {
      return kept[j];
    } else {
      return load_vector<N>(row + column(j));
    }
  }

  // Calls use(column, vector, j) for every vector of this thread; changes of the vector are kept,
  // if it is. `row`: where vectors that are not kept are read from.
  template <class Use>
  __device__ void each(const T* row, Use use) {
    if constexpr (Own > 0) {
#pragma unroll
      for (int j = 0; j < Own; ++j) {
        if (Full || column(j) < columns) use(column(j), kept[j], j);
      }
    } else {
      for (int j = 0; column(j) < columns; ++j) {
        Vector<T, N> v = at(row, j);
        use(column(j), v, j);
      }
    }
  }
};

// The vectors per thread that leave the fewest idle in a row of `pieces`. Several of them keep more
// loads in flight and leave fewer threads to reduce over; short rows have too few to share, and so
// few rows that there are more multiprocessors want all threads of a block.
inline constexpr int64_t kGemvRows = 4;  // on every device, so that bits do not depend on its size
inline int vectors_per_thread(int64_t rows, int64_t pieces, int wave) {
  if (pieces <= wave || rows <= kGemvRows) return 1;
  if (pieces <= 4 * wave) return 2;
  int best = 4;
  const auto idle = [&](int own) {
    const int64_t step = int64_t{own} * wave;
    return (pieces + step - 1) / step * step - pieces;
  };
  for (const int own : {3, 2}) {
    if (pieces <= own * kMostRowThreads && idle(own) < idle(best)) best = own;
  }
  return best;
}

// Threads and vectors per thread for `rows` of `columns`, then
// go.operator()<Wave, N, Own, Full>(threads).
template <class T, class Go>
void with_row_slices(GpuOps& ops, int64_t rows, int64_t columns, bool vectors, Go go) {
  with_wave(ops.stream(), [&]<int Wave>() {
    const auto launched = [&]<int N>(std::string_view kernel) {
      const int64_t pieces = (columns + N - 1) / N;
      const auto with_own = [&]<int Own>(std::string_view variant) {
        if (pieces > Own * kMostRowThreads || !ops.choose(kernel, variant)) return false;
        const int64_t threads = ((pieces + Own - 1) / Own + Wave - 1) / Wave * Wave;
        const auto begin = [&]<bool Full>() {
          go.template operator()<Wave, N, Own, Full>(static_cast<unsigned>(threads));
        };
        constexpr bool kMayBeFull = N > 1 && Own > 2;  // where long rows are
        if constexpr (kMayBeFull) {
          if (pieces == Own * threads) return begin.template operator()<true>(), true;
        }
        begin.template operator()<false>();
        return true;
      };
      const auto kept = [&](int own) {
        switch (own) {
          case 1: return with_own.template operator()<1>("own1");
          case 2: return with_own.template operator()<2>("own2");
          case 3: return with_own.template operator()<3>("own3");
          default: return with_own.template operator()<4>("own4");
        }
      };
      if (kept(vectors_per_thread(rows, pieces, Wave))) return true;
      constexpr int kOrders[2][4] = {{4, 3, 2, 1}, {1, 2, 3, 4}};
      for (const int own : kOrders[rows <= kGemvRows]) {
        if (kept(own)) return true;
      }
      if (!ops.choose(kernel, "reread")) return false;
      go.template operator()<Wave, N, 0, false>(unsigned{kMostRowThreads});
      return true;
    };
    if (vectors && launched.template operator()<kVector<T>>("vectors")) return;
    if (!launched.template operator()<1>("scalars")) ops.choice().exhausted();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
