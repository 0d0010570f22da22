// rotary_table and rotary. Roundings: three per rotated element, as apply_rotary_pos_emb in storage
// dtype.
//
// rotary: memory-bound. A thread owns 16 bytes of each half of a row of x [B, H, T, D] (or 32
// adjacent bytes where pairs are interleaved) for two heads, which share what it reads of the
// tables; rows are taken in the order in which they lie in memory.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kHeads = 2;  // heads of a thread

// A thread owns a pair: columns i and i + half.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rotary_table_pairs(T* cos_out, Rows cos_rows, T* sin_out, Rows sin_rows,
                       const int64_t* positions, Rows position_rows, Divisor tokens,
                       const float* inv_freq, int64_t rows, Divisor half, float scaling) {
  const int64_t total = rows * half.value(), step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const Division at = divide(i, half);
    const Division token = divide(at.quotient, tokens);
    const int64_t position = positions[position_rows.offset(token.quotient) + token.remainder];
    const float angle = static_cast<float>(position) * inv_freq[at.remainder];
    T* cos = cos_out + cos_rows.offset(at.quotient) + at.remainder;
    T* sin = sin_out + sin_rows.offset(at.quotient) + at.remainder;
    cos[0] = cos[half.value()] = from_float<T>(cosf(angle) * scaling);
    sin[0] = sin[half.value()] = from_float<T>(sinf(angle) * scaling);
  }
}

template <class T>
struct RotaryOperands {
  T* out;
  const T* x;
  const T* cos_table;
  const T* sin_table;
  // Rows as [outer, middle, inner]: batch, then token and group of heads in memory order.
  int64_t out_stride[3], x_stride[3], table_stride[3];
  Divisor middle, inner;
  int64_t rows;
  Divisor work;          // vectors (pairs of them up to `rotated`) per row
  int64_t pairs, width;  // rotated columns / 2, all columns
  int group_axis;        // which of the three the groups are
  int64_t heads, x_head_stride, out_head_stride;
};

// N pairs of a row: a and b hold the elements, c and s the tables' values.
template <class T, int N, bool Halves>
__device__ inline void rotate(const Vector<T, N> (&x)[2], const Vector<T, N> (&c)[2],
                              const Vector<T, N> (&s)[2], Vector<T, N> (&y)[2]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    // Where the pair's two elements are: in the two halves, or side by side in 2 N elements.
    const int i0 = Halves ? 0 : 2 * k / N, j0 = Halves ? k : 2 * k % N;
    const int i1 = Halves ? 1 : (2 * k + 1) / N, j1 = Halves ? k : (2 * k + 1) % N;
    const int t1 = Halves ? 1 : 0;  // the second element's table entry
    const float a = to_float(x[i0][j0]), b = to_float(x[i1][j1]);
    const float cos_a = rounded<T>(a * to_float(c[0][k])),
                sin_b = rounded<T>(b * to_float(s[0][k]));
    const float cos_b = rounded<T>(b * to_float(c[t1][k]));
    const float sin_a = rounded<T>(a * to_float(s[t1][k]));
    y[i0][j0] = from_float<T>(cos_a - sin_b);
    y[i1][j1] = from_float<T>(cos_b + sin_a);
  }
}

template <class T, int N, bool Halves>
__global__ void __launch_bounds__(kThreads) rotary_rows(RotaryOperands<T> p) {
  const int64_t total = p.rows * p.work.value(), step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const Division in_row = divide(i, p.work), low = divide(in_row.quotient, p.inner);
    const Division high = divide(low.quotient, p.middle);
    const auto offset = [&](const int64_t(&stride)[3]) {
      return high.quotient * stride[0] + high.remainder * stride[1] + low.remainder * stride[2];
    };
    const T* from = p.x + offset(p.x_stride);
    T* to = p.out + offset(p.out_stride);
    const int64_t group = p.group_axis == 1 ? high.remainder : low.remainder;
    const int heads = static_cast<int>(p.heads - group * kHeads);  // may be more than kHeads
    const int64_t pair = in_row.remainder * N;
    if (pair >= p.pairs) {  // beyond the rotated columns: a copy
      const int64_t column = pair + p.pairs;
      for (int h = 0; h < kHeads && h < heads; ++h) {
        store_vector(to + h * p.out_head_stride + column,
                     load_vector<N>(from + h * p.x_head_stride + column));
      }
      continue;
    }
    const int64_t first = Halves ? pair : 2 * pair, second = first + (Halves ? p.pairs : N);
    const T* cos = p.cos_table + offset(p.table_stride) + pair;
    const T* sin = p.sin_table + offset(p.table_stride) + pair;
    const int64_t other = Halves ? p.pairs : 0;
    Vector<T, N> x[kHeads][2];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {  // all loads before the first use
      if (h >= heads) continue;
      x[h][0] = load_vector<N>(from + h * p.x_head_stride + first);
      x[h][1] = load_vector<N>(from + h * p.x_head_stride + second);
    }
    const Vector<T, N> c[2] = {load_vector<N>(cos), load_vector<N>(cos + other)};
    const Vector<T, N> s[2] = {load_vector<N>(sin), load_vector<N>(sin + other)};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) continue;
      Vector<T, N> y[2];
      rotate<T, N, Halves>(x[h], c, s, y);
      store_vector(to + h * p.out_head_stride + first, y[0]);
      store_vector(to + h * p.out_head_stride + second, y[1]);
    }
  }
}

}  // namespace

void GpuOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                             const Tensor& inv_freq, double attention_scaling) {
  if (cos.numel() == 0) return;
  settle_for("pairs");
  with_storage("rotary_table", cos.dtype(), [&]<class T>(T) {
    const int64_t pairs = positions.numel() * inv_freq.dim(0);
    launch<rotary_table_pairs<T>>(
        "rotary_table", {grid_for(pairs, kThreads)}, {kThreads}, 0, stream(), cos.data<T>(),
        rows_of("rotary_table", cos), sin.data<T>(), rows_of("rotary_table", sin),
        static_cast<const int64_t*>(positions.data<int64_t>()), rows_of("rotary_table", positions),
        Divisor(positions.dim(-1)), static_cast<const float*>(inv_freq.data<float>()),
        positions.numel(), Divisor(inv_freq.dim(0)), static_cast<float>(attention_scaling));
  });
}

void GpuOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       RotaryStyle style) {
  if (x.numel() == 0) return;
  require<Unsupported>(cos.stride(0) == sin.stride(0) && cos.stride(1) == sin.stride(1), "rotary",
                       "cos and sin must have equal strides");
  with_storage("rotary", x.dtype(), [&]<class T>(T) {
    RotaryOperands<T> p{};
    p.out = out.data<T>();
    p.x = x.data<T>();
    p.cos_table = cos.data<T>();
    p.sin_table = sin.data<T>();
    const bool heads_inside = x.stride(1) < x.stride(2);
    const int axes[3] = {0, heads_inside ? 2 : 1, heads_inside ? 1 : 2};
    p.heads = x.dim(1);
    p.x_head_stride = x.stride(1);
    p.out_head_stride = out.stride(1);
    const int64_t extents[3] = {x.dim(0), (p.heads + kHeads - 1) / kHeads, x.dim(2)};
    for (int i = 0; i < 3; ++i) {
      const int axis = axes[i];
      const int64_t times = axis == 1 ? kHeads : 1;
      p.out_stride[i] = times * out.stride(axis);
      p.x_stride[i] = times * x.stride(axis);
      p.table_stride[i] = axis == 1 ? 0 : cos.stride(axis == 0 ? 0 : 1);
    }
    p.group_axis = heads_inside ? 2 : 1;
    p.middle = Divisor(extents[axes[1]]);
    p.inner = Divisor(extents[axes[2]]);
    p.rows = extents[0] * extents[1] * extents[2];
    p.width = x.dim(3);
    p.pairs = cos.dim(2) / 2;
    const bool halves = style == RotaryStyle::half;
    const std::string_view variant = halves ? "half" : "interleaved";
    const auto go = [&]<int N>() {
      p.work = Divisor((p.width - p.pairs) / N);
      const Dim grid{grid_for(p.rows * p.work.value(), kThreads)};
      if (halves) {
        launch<rotary_rows<T, N, true>>("rotary", grid, {kThreads}, 0, stream(), p);
      } else {
        launch<rotary_rows<T, N, false>>("rotary", grid, {kThreads}, 0, stream(), p);
      }
    };
    if (p.pairs % kVector<T> == 0 && rows_are_vectors(x) && rows_are_vectors(out) &&
        rows_are_vectors(cos) && rows_are_vectors(sin) && choose("vectors", variant)) {
      return go.template operator()<kVector<T>>();
    }
    settle_for("scalars", variant);
    go.template operator()<1>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
