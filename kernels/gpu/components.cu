// transpose, mask_fill, position_ids: elements moved or chosen, and a running count.
//
// transpose: a block moves tiles of 32 x 32 through shared memory, so that both sides are read and
// written along their rows. mask_fill: one element per thread, neighbours along the rows.
// position_ids: a block owns a row; every thread counts its part, then the parts before it.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32, kLines = kThreads / kTile;

template <class T>
struct Tile {
  T at[kTile][kTile + 1];  // one more: a column's elements lie in different banks
};

template <class T>
struct TransposeOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  int64_t rows, columns;   // of x
  Divisor across, matrix;  // tiles of a row of tiles, of a matrix
  int64_t total;           // tiles
};

template <class T>
__global__ void __launch_bounds__(kThreads) transpose_tiles(TransposeOperands<T> p) {
  Tile<T>& tile = block_shared<Tile<T>>();
  const int column = static_cast<int>(thread_index().x) % kTile;
  const int line = static_cast<int>(thread_index().x) / kTile;
  for (int64_t n = block_index().x; n < p.total; n += grid_size().x) {
    const Division matrix = divide(n, p.matrix), place = divide(matrix.remainder, p.across);
    const int64_t row0 = place.quotient * kTile, column0 = place.remainder * kTile;
    for (int i = line; i < kTile; i += kLines) {
      if (row0 + i >= p.rows || column0 + column >= p.columns) continue;
      const int64_t row = matrix.quotient * p.rows + row0 + i;
      tile.at[i][column] = p.x[p.x_rows.offset(row) + column0 + column];
    }
    block_barrier();
    for (int i = line; i < kTile; i += kLines) {
      if (column0 + i >= p.columns || row0 + column >= p.rows) continue;
      const int64_t row = matrix.quotient * p.columns + column0 + i;
      p.out[p.out_rows.offset(row) + row0 + column] = tile.at[column][i];
    }
    block_barrier();
  }
}

template <class T>
void transpose_as(GpuOps& ops, std::string_view variant, const Tensor& out, const Tensor& x) {
  ops.settle_for("tiles", variant);
  const int64_t rows = x.dim(-2), columns = x.dim(-1);
  const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
  const TransposeOperands<T> p{
      out.data<T>(),
      rows_of("transpose", out),
      x.data<T>(),
      rows_of("transpose", x),
      rows,
      columns,
      Divisor(across),
      Divisor(down * across),
      divisible("transpose", x.numel() / (rows * columns) * down * across)};
  launch<transpose_tiles<T>>("transpose", {grid_for(p.total, 1)}, {kThreads}, 0, ops.stream(), p);
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
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < p.total; i += step) {
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
}

struct PositionOperands {
  int64_t* out;
  int64_t out_row;
  const bool* valid;  // null: all tokens are real
  int64_t valid_row;
  int64_t batch, tokens, offset;
};

struct Counts {
  int of[kThreads];  // real tokens in each thread's part
};

__global__ void __launch_bounds__(kThreads) count_positions(PositionOperands p) {
  Counts& counts = block_shared<Counts>();
  const int thread = static_cast<int>(thread_index().x);
  const int64_t part = (p.tokens + kThreads - 1) / kThreads;
  const int64_t begin = part * thread < p.tokens ? part * thread : p.tokens;
  const int64_t end = begin + part < p.tokens ? begin + part : p.tokens;
  for (int64_t b = block_index().x; b < p.batch; b += grid_size().x) {
    const bool* valid = p.valid ? p.valid + b * p.valid_row : nullptr;
    int own = 0;
    for (int64_t t = begin; t < end; ++t) own += !valid || valid[t];
    counts.of[thread] = own;
    block_barrier();
    int64_t next = p.offset;
    for (int i = 0; i < thread; ++i) next += counts.of[i];
    for (int64_t t = begin; t < end; ++t) {
      p.out[b * p.out_row + t] = !valid || valid[t] ? next++ : 0;
    }
    block_barrier();
  }
}

}  // namespace

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
      launch<fill_masked<T, N>>("mask_fill", {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(),
                                p);
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
  launch<count_positions>("position_ids", {grid_for(p.batch, 1)}, {kThreads}, 0, stream(), p);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
