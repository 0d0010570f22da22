// linear and matmul: the tiled product that always builds, and a kernel for few rows.
//
// product_tiles: a block of 256 threads makes a 64 x 64 tile of out = a b, each thread 4 x 4 of it;
// slices of 16 of the inner axis pass through shared memory as float32. Sums run over k in order,
// one rounding at the end, after the bias. gemv: out [M <= 8, N] = x w^T; a wave owns a column,
// reads its weights once with 16-byte accesses and keeps M sums. One row: one_row.cu.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kOwn = 4;

template <class T>
struct GemmOperands {
  T* out;
  Rows out_rows;  // of one (batch, head) for batched products
  const T* a;
  Rows a_rows;
  const T* b;
  int64_t b_inner, b_column;  // strides of b along k and n
  const T* bias;              // null: none
  int64_t rows, columns, inner;
  // Batched: z = batch * heads + head; b's head is head / group.
  int64_t batches, heads, group;
  int64_t a_batch, a_head, b_batch, b_head, out_batch, out_head;
};

struct Tiles {
  float a[kDepth][kTile + 4];
  float b[kDepth][kTile + 4];
};

template <class T>
__global__ void __launch_bounds__(kThreads) product_tiles(GemmOperands<T> p) {
  wait_for_previous_kernel();
  Tiles& tiles = block_shared<Tiles>();
  const int t = static_cast<int>(thread_index().x);
  const int64_t column_tiles = (p.columns + kTile - 1) / kTile;
  const int64_t row_tiles = (p.rows + kTile - 1) / kTile;
  const int64_t total = column_tiles * row_tiles * p.batches;
  for (int64_t tile = block_index().x; tile < total; tile += grid_size().x) {
    const int64_t column0 = tile % column_tiles * kTile;
    const int64_t row0 = tile / column_tiles % row_tiles * kTile;
    const int64_t z = tile / column_tiles / row_tiles, head = z % p.heads, batch = z / p.heads;
    const T* a = p.a + batch * p.a_batch + head * p.a_head;
    const T* b = p.b + batch * p.b_batch + head / p.group * p.b_head;
    T* out = p.out + batch * p.out_batch + head * p.out_head;
    float sum[kOwn][kOwn] = {};
    for (int64_t k0 = 0; k0 < p.inner; k0 += kDepth) {
      block_barrier();  // the slices of the previous round have been used
      for (int i = t; i < kTile * kDepth; i += kThreads) {
        const int k = i % kDepth, r = i / kDepth;
        const bool inside = row0 + r < p.rows && k0 + k < p.inner;
        tiles.a[k][r] = inside ? to_float(a[p.a_rows.offset(row0 + r) + k0 + k]) : 0.0f;
      }
      for (int i = t; i < kTile * kDepth; i += kThreads) {
        // Neighbouring threads read along b's contiguous axis.
        const int k = p.b_inner == 1 ? i % kDepth : i / kTile;
        const int c = p.b_inner == 1 ? i / kDepth : i % kTile;
        const bool inside = column0 + c < p.columns && k0 + k < p.inner;
        tiles.b[k][c] =
            inside ? to_float(b[(k0 + k) * p.b_inner + (column0 + c) * p.b_column]) : 0.0f;
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
        if (column >= p.columns) continue;
        const float bias = p.bias ? to_float(p.bias[column]) : 0.0f;
        out[p.out_rows.offset(row) + column] = from_float<T>(sum[i][j] + bias);
      }
    }
  }
}

template <class T, int Wave, int M>
__global__ void __launch_bounds__(kThreads) gemv(GemmOperands<T> p) {
  wait_for_previous_kernel();
  constexpr int N = kVector<T>, kInFlight = 4;  // loads of weights before the first use
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t waves = int64_t{grid_size().x} * (kThreads / Wave);
  int64_t column = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  for (; column < p.columns; column += waves) {
    const T* w = p.b + column * p.b_column;
    float sum[M] = {};
    for (int64_t k0 = int64_t{lane} * N; k0 < p.inner; k0 += int64_t{kInFlight} * Wave * N) {
      Vector<T, N> weights[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t k = k0 + int64_t{j} * Wave * N;
        weights[j] = k < p.inner ? load_vector<N>(w + k) : Vector<T, N>{};
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t k = k0 + int64_t{j} * Wave * N;
        if (k >= p.inner) break;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          if (m >= p.rows) continue;
          const auto x = load_vector<N>(p.a + p.a_rows.offset(m) + k);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            sum[m] = fused_multiply_add(to_float(x[i]), to_float(weights[j][i]), sum[m]);
          }
        }
      }
    }
    const float bias = p.bias ? to_float(p.bias[column]) : 0.0f;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float total = warp_sum<Wave>(sum[m]);
      if (lane == 0 && m < p.rows) {
        p.out[p.out_rows.offset(m) + column] = from_float<T>(total + bias);
      }
    }
  }
}

template <class T>
void launch_tiles(const char* op, Stream stream, const GemmOperands<T>& p) {
  const int64_t tiles =
      (p.columns + kTile - 1) / kTile * ((p.rows + kTile - 1) / kTile) * p.batches;
  launch_overlapped<product_tiles<T>>(op, {grid_for(tiles, 1)}, {kThreads}, 0, stream, p);
}

}  // namespace

void GpuOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  if (out.numel() == 0) return;
  const int64_t rows = out.numel() / out.dim(-1);
  const bool vectors = rows_are_vectors(x) && rows_are_vectors(weight);
  const bool single = rows == 1 && vectors && x.dim(-1) <= INT32_MAX / 2 && choose("one_row");
  if (single)
    return held_.one_row({out, x, weight, bias, {}, {}, {}, {}}, in_flight_.settled(weight));
  if (library_linear(out, x, weight, bias)) return;
  with_storage("linear", out.dtype(), [&]<class T>(T) {
    GemmOperands<T> p{};
    p.out = out.data<T>();
    p.out_rows = rows_of("linear", out);
    p.a = x.data<T>();
    p.a_rows = rows_of("linear", x);
    p.b = weight.data<T>();
    p.b_inner = 1;
    p.b_column = weight.stride(0);
    p.bias = bias.defined() ? bias.data<T>() : nullptr;
    p.rows = rows;
    p.columns = weight.dim(0);
    p.inner = weight.dim(1);
    p.batches = p.heads = p.group = 1;
    const auto go = [&]<int M>() {
      with_wave(stream(), [&]<int Wave>() {
        launch_overlapped<gemv<T, Wave, M>>("linear", {grid_for(p.columns, kThreads / Wave)},
                                            {kThreads}, 0, stream(), p);
      });
    };
    if (vectors) {
      if (p.rows <= 4 && choose("gemv", "m4")) return go.template operator()<4>();
      if (p.rows <= 8 && choose("gemv", "m8")) return go.template operator()<8>();
    }
    settle_for("tiles");
    launch_tiles("linear", stream(), p);
  });
}

void GpuOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  if (out.numel() == 0) return;
  if (library_matmul(out, a, b, transpose_b)) return;
  with_storage("matmul", out.dtype(), [&]<class T>(T) {
    GemmOperands<T> p{};
    p.out = out.data<T>();
    p.a = a.data<T>();
    p.b = b.data<T>();
    p.b_inner = transpose_b ? 1 : b.stride(2);
    p.b_column = transpose_b ? b.stride(2) : 1;
    p.rows = a.dim(2);
    p.inner = a.dim(3);
    p.columns = out.dim(3);
    p.heads = a.dim(1);
    p.batches = a.dim(0) * p.heads;
    p.group = p.heads / b.dim(1);
    p.a_batch = a.stride(0);
    p.a_head = a.stride(1);
    p.b_batch = b.stride(0);
    p.b_head = b.stride(1);
    p.out_batch = out.stride(0);
    p.out_head = out.stride(1);
    const auto rows_along = [](int64_t count, int64_t stride) {
      Rows rows;
      rows.count = count;
      rows.innermost = Divisor(count);
      rows.stride2 = stride;
      return rows;
    };
    p.a_rows = rows_along(p.rows, a.stride(2));
    p.out_rows = rows_along(p.rows, out.stride(2));
    settle_for("tiles");
    launch_tiles("matmul", stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
