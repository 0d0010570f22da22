// transpose, mask_fill, position_ids, cumsum: elements moved or chosen, running counts and sums.
//
// transpose: a thread owns a square of 16-byte rows and turns it in registers; where alignment
// forbids that, a block moves tiles through shared memory, so that both sides are read and written
// along their rows. mask_fill: 16 bytes per thread, neighbours along the rows. position_ids: a
// block owns a row; every thread counts its part, and a wave adds up what its lanes counted.
// cumsum: a thread owns a column, or a wave a row along which it sums.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/plain.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

// Matrices of `rows` by `columns` (of x); blocks: [matrix, tile].
template <class T>
struct TransposeOperands {
  T* out;
  Rows out_matrices;
  int64_t out_row;  // elements from one row to the next
  const T* x;
  Rows x_matrices;
  int64_t x_row;
  int64_t rows, columns;
  unsigned across;  // tiles of a row of tiles
  int64_t first;    // matrix, of the grid's first

  __device__ const T* from(int64_t row, int64_t column) const {
    return x + x_matrices.offset(first + block_index().y) + row * x_row + column;
  }
  __device__ T* to(int64_t row, int64_t column) const {
    return out + out_matrices.offset(first + block_index().y) + column * out_row + row;
  }
  __device__ int64_t tile_row() const { return block_index().x / across; }
  __device__ int64_t tile_column() const { return block_index().x % across; }
};

// Squares of a block. A wave of 32 has 4 across and 8 down: it reads 64 bytes and writes 128 bytes
// of each row at once.
constexpr int kAcross = 8, kDown = 16, kSquareThreads = kAcross * kDown;

template <class T>
__global__ void __launch_bounds__(kSquareThreads) transpose_squares(TransposeOperands<T> p) {
  wait_for_previous_kernel();
  constexpr int N = kVector<T>;
  const unsigned thread = thread_index().x, lane = thread % 32, wave = thread / 32;
  const unsigned across = lane % 4 + wave % 2 * 4, down = lane / 4 + wave / 2 * 8;
  const int64_t row = (p.tile_row() * kDown + down) * N;
  const int64_t column = (p.tile_column() * kAcross + across) * N;
  if (row >= p.rows || column >= p.columns) return;
  const T* from = p.from(row, column);
  Vector<T, N> x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = load_vector<N>(from + i * p.x_row);
  T* to = p.to(row, column);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    Vector<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = x[i][j];
    store_vector(to + j * p.out_row, y);
  }
}

constexpr int kTile = 32, kLines = kThreads / kTile;

template <class T>
struct Tile {
  T at[kTile][kTile + 1];  // one more: a column's elements are in different banks
};

template <class T>
__global__ void __launch_bounds__(kThreads) transpose_tiles(TransposeOperands<T> p) {
  wait_for_previous_kernel();
  Tile<T>& tile = block_shared<Tile<T>>();
  const int column = static_cast<int>(thread_index().x) % kTile;
  const int line = static_cast<int>(thread_index().x) / kTile;
  const int64_t row0 = p.tile_row() * kTile, column0 = p.tile_column() * kTile;
  for (int i = line; i < kTile; i += kLines) {
    if (row0 + i >= p.rows || column0 + column >= p.columns) continue;
    tile.at[i][column] = *p.from(row0 + i, column0 + column);
  }
  block_barrier();
  for (int i = line; i < kTile; i += kLines) {
    if (column0 + i >= p.columns || row0 + column >= p.rows) continue;
    *p.to(row0 + column, column0 + i) = tile.at[column][i];
  }
}

template <class T>
void transpose_as(GpuOps& ops, std::string_view variant, const Tensor& out, const Tensor& x) {
  TransposeOperands<T> p{out.data<T>(),
                         rows_of("transpose", out, 2),
                         out.stride(-2),
                         x.data<T>(),
                         rows_of("transpose", x, 2),
                         x.stride(-2),
                         x.dim(-2),
                         x.dim(-1),
                         0,
                         0};
  const int64_t matrices = x.numel() / (p.rows * p.columns);
  const auto go = [&]<auto Kernel>(int64_t tile_rows, int64_t tile_columns, unsigned threads) {
    constexpr int64_t kMostMatrices = 65535;  // of a grid
    const int64_t down = (p.rows + tile_rows - 1) / tile_rows;
    const int64_t across = (p.columns + tile_columns - 1) / tile_columns;
    const unsigned tiles = grid_of_rows("transpose", down * across);
    p.across = static_cast<unsigned>(across);
    for (p.first = 0; p.first < matrices; p.first += kMostMatrices) {
      const Dim grid{tiles, static_cast<unsigned>(std::min(matrices - p.first, kMostMatrices))};
      launch_overlapped<Kernel>("transpose", grid, {threads}, 0, ops.stream(), p);
    }
  };
  if (rows_are_vectors(out) && rows_are_vectors(x) && ops.choose("vectors", variant)) {
    constexpr int N = kVector<T>;
    return go.template operator()<transpose_squares<T>>(kDown * N, kAcross * N, kSquareThreads);
  }
  ops.settle_for("tiles", variant);
  go.template operator()<transpose_tiles<T>>(kTile, kTile, kThreads);
}

template <class T>
struct FillOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  const bool* mask;
  Rows mask_rows;
  Divisor width;  // of a row, in vectors
  int64_t total;  // vectors
  float value;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) fill_masked(FillOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.width);
  const int64_t column = at.remainder * N;
  const auto filled = load_vector<N>(p.mask + p.mask_rows.offset(at.quotient) + column);
  Vector<T, N> y = load_vector<N>(p.x + p.x_rows.offset(at.quotient) + column);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (filled[j]) y[j] = from_float<T>(p.value);
  }
  store_elements(p.out + p.out_rows.offset(at.quotient) + column, y);
}

struct PositionOperands {
  int64_t* out;
  int64_t out_row;
  const bool* valid;  // null: all tokens are real
  int64_t valid_row;
  int64_t batch, tokens, offset;
};

constexpr int kMostCounting = 1024;

template <int Wave>
struct Counts {
  int of_wave[kMostCounting / Wave];  // real tokens
};

template <int Wave>
__global__ void __launch_bounds__(kMostCounting) count_positions(PositionOperands p) {
  wait_for_previous_kernel();
  Counts<Wave>& counts = block_shared<Counts<Wave>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  const int threads = static_cast<int>(block_size().x);
  const int64_t part = (p.tokens + threads - 1) / threads;
  const int64_t begin = part * thread < p.tokens ? part * thread : p.tokens;
  const int64_t end = begin + part < p.tokens ? begin + part : p.tokens;
  for (int64_t b = block_index().x; b < p.batch; b += grid_size().x) {
    const bool* valid = p.valid ? p.valid + b * p.valid_row : nullptr;
    int own = 0;
    for (int64_t t = begin; t < end; ++t) own += !valid || valid[t];
    int up_to_own = own;  // of the lanes up to this one
    for (int step = 1; step < Wave; step *= 2) {
      const int before = shuffle<Wave>(up_to_own, lane < step ? lane : lane - step);
      if (lane >= step) up_to_own += before;
    }
    if (lane == Wave - 1) counts.of_wave[thread / Wave] = up_to_own;
    block_barrier();
    int64_t next = p.offset + up_to_own - own;
    for (int w = 0; w < thread / Wave; ++w) next += counts.of_wave[w];
    for (int64_t t = begin; t < end; ++t) {
      p.out[b * p.out_row + t] = !valid || valid[t] ? next++ : 0;
    }
    block_barrier();
  }
}

template <class T>
struct SumOperands {
  T* out;
  Rows out_rows;
  int64_t out_step;  // along the axis
  const T* x;
  Rows x_rows;
  int64_t x_step;
  Divisor width;   // of a row; 1 along rows
  int64_t total;   // sums
  int64_t length;  // terms of the longest
};

template <class T>
__global__ void __launch_bounds__(kThreads) running_sums_of_columns(SumOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.width);
  const T* x = p.x + p.x_rows.offset(at.quotient) + at.remainder;
  T* out = p.out + p.out_rows.offset(at.quotient) + at.remainder;
  float sum = 0;
  for (int64_t j = 0; j < p.length; ++j) {
    sum += to_float(x[j * p.x_step]);
    out[j * p.out_step] = from_float<T>(sum);
  }
}

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) running_sums_of_rows(SumOperands<T> p) {
  wait_for_previous_kernel();
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  const int64_t row = int64_t{kThreads / Wave} * block_index().x + thread / Wave;
  if (row >= p.total) return;
  const T* x = p.x + p.x_rows.offset(row);
  T* out = p.out + p.out_rows.offset(row);
  float before = 0;
  for (int64_t begin = 0; begin < p.length; begin += Wave) {
    const int64_t at = begin + lane;
    float sum = at < p.length ? to_float(x[at]) : 0;
    for (int step = 1; step < Wave; step *= 2) {
      const float left = shuffle<Wave>(sum, lane < step ? lane : lane - step);
      if (lane >= step) sum += left;
    }
    sum += before;
    if (at < p.length) out[at] = from_float<T>(sum);
    before = shuffle<Wave>(sum, Wave - 1);
  }
}

}  // namespace

void GpuOps::do_cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  if (x.numel() == 0) return;
  const int at = static_cast<int>(axis);
  if (computes_plainly(x.dtype())) return cumsum_plainly(*this, out, x, at);
  const bool along_rows = at == x.rank() - 1;
  const Tensor first = x.slice(at, 0, 1), out_first = out.slice(at, 0, 1);
  with_storage("cumsum", x.dtype(), [&]<class T>(T) {
    const SumOperands<T> p{out.data<T>(),
                           rows_of("cumsum", out_first),
                           out.stride(at),
                           x.data<T>(),
                           rows_of("cumsum", first),
                           x.stride(at),
                           Divisor(first.dim(-1)),
                           divisible("cumsum", first.numel()),
                           x.dim(at)};
    if (!along_rows) {
      launch_overlapped<running_sums_of_columns<T>>("cumsum", {grid_for(p.total, kThreads)},
                                                    {kThreads}, 0, stream(), p);
      return;
    }
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<running_sums_of_rows<T, Wave>>(
          "cumsum", {grid_for(p.total, kThreads / Wave)}, {kThreads}, 0, stream(), p);
    });
  });
}

void GpuOps::do_transpose(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  with_storage("transpose", x.dtype(), [&]<class T>(T) {
    if constexpr (sizeof(T) == 4) {
      transpose_as<uint32_t>(*this, "b4", out, x);
    } else {
      transpose_as<uint16_t>(*this, "b2", out, x);
    }
  });
}

void GpuOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  if (x.numel() == 0) return;
  with_storage("mask_fill", x.dtype(), [&]<class T>(T) {
    const auto go = [&]<int N>() {
      const FillOperands<T> p{out.data<T>(),
                              rows_of("mask_fill", out),
                              x.data<T>(),
                              rows_of("mask_fill", x),
                              mask.data<bool>(),
                              rows_of("mask_fill", mask),
                              Divisor(x.dim(-1) / N),
                              divisible("mask_fill", x.numel() / N),
                              static_cast<float>(value)};
      launch_overlapped<fill_masked<T, N>>("mask_fill", {grid_for(p.total, kThreads)}, {kThreads},
                                           0, stream(), p);
    };
    const bool vectors =
        rows_are_vectors(out) && rows_are_vectors(x) && rows_are_multiples_of(kVector<T>, mask);
    if (vectors && choose("vectors")) {
      return go.template operator()<kVector<T>>();
    }
    settle_for("scalars");
    go.template operator()<1>();
  });
}

void GpuOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  if (out.numel() == 0) return;
  settle_for("rows");
  const PositionOperands p{out.data<int64_t>(),
                           out.stride(0),
                           valid.defined() ? valid.data<bool>() : nullptr,
                           valid.defined() ? valid.stride(0) : 0,
                           out.dim(0),
                           out.dim(1),
                           offset};
  with_wave(stream(), [&]<int Wave>() {
    const int64_t waves =
        std::clamp<int64_t>((p.tokens + Wave - 1) / Wave, 1, kMostCounting / Wave);
    launch_overlapped<count_positions<Wave>>("position_ids", {grid_for(p.batch, 1)},
                                             {static_cast<unsigned>(waves * Wave)}, 0, stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
