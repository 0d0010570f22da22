// rotary_table and rotary. Roundings: three per rotated element, as apply_rotary_pos_emb in storage
// dtype.
//
// rotary_table: a thread owns four pairs of columns, or one where alignment forbids that.
// rotary: memory-bound. A thread owns 16 bytes of each half of a row of x [B, H, T, D] (or 32
// adjacent bytes where pairs are interleaved).
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class T>
struct TableOperands {
  T* cos;
  Rows cos_rows;
  T* sin;
  Rows sin_rows;
  const int64_t* positions;
  Rows position_rows;
  Divisor tokens;
  const float* inv_freq;
  int64_t half;  // columns
  Divisor work;  // of a row, in vectors of pairs
  int64_t total;
  float scaling;
};

// A thread owns N pairs: columns i and i + half.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotary_table_pairs(TableOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.work);
  const Division token = divide(at.quotient, p.tokens);
  const int64_t place = p.position_rows.offset(token.quotient) + token.remainder;
  const auto position = static_cast<float>(p.positions[place]);
  const int64_t column = at.remainder * N;
  const auto inv_freq = load_vector<N>(p.inv_freq + column);
  float cosines[N], sines[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sincosf(position * inv_freq[j], &sines[j], &cosines[j]);
    cosines[j] *= p.scaling;
    sines[j] *= p.scaling;
  }
  const auto both_halves = [&](T* row, const Vector<T, N>& v) {
    store_vector(row + column, v);
    store_vector(row + column + p.half, v);
  };
  both_halves(p.cos + p.cos_rows.offset(at.quotient), narrowed<T>(cosines));
  both_halves(p.sin + p.sin_rows.offset(at.quotient), narrowed<T>(sines));
}

template <class T>
struct RotaryOperands {
  T* out;
  const T* x;
  const T* cos_table;
  const T* sin_table;
  int64_t out_stride[3], x_stride[3], cos_stride[3], sin_stride[3];  // of batch, head, token
  Divisor heads;
  int64_t first;  // [batch, head] as one number, of the grid's first
  Divisor work;   // vectors (pairs of them up to `pairs`) per row
  int64_t total;  // of all rows of a head
  int64_t pairs;  // rotated columns / 2
};

// N pairs (x, y) of a row as stored: in two halves, or interleaved in 2 N elements.
// c, s: the tables' values for a pair's two elements. Inverse: the way back.
template <class T, int N, bool Halves, bool Inverse>
__device__ inline void rotate(const Vector<T, N> (&x)[2], const Vector<T, N> (&c)[2],
                              const Vector<T, N> (&s)[2], Vector<T, N> (&y)[2]) {
  Vector<T, N> a = x[0], b = x[1];
  if constexpr (!Halves) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      a[k] = x[2 * k / N][2 * k % N];
      b[k] = x[(2 * k + 1) / N][(2 * k + 1) % N];
    }
  }
  Vector<T, N> first, second;
  if constexpr (Inverse) {
    first = rounded_sum(rounded_product(a, c[0]), rounded_product(b, s[1]));
    second = rounded_difference(rounded_product(b, c[1]), rounded_product(a, s[0]));
  } else {
    first = rounded_difference(rounded_product(a, c[0]), rounded_product(b, s[0]));
    second = rounded_sum(rounded_product(b, c[1]), rounded_product(a, s[1]));
  }
  y[0] = first;
  y[1] = second;
  if constexpr (!Halves) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      y[2 * k / N][2 * k % N] = first[k];
      y[(2 * k + 1) / N][(2 * k + 1) % N] = second[k];
    }
  }
}

template <class T, int N, bool Halves, bool Inverse>
__global__ void __launch_bounds__(kThreads) rotary_rows(RotaryOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division in_row = divide(i, p.work), head = divide(p.first + block_index().y, p.heads);
  const auto offset = [&](const int64_t(&stride)[3]) {
    return head.quotient * stride[0] + head.remainder * stride[1] + in_row.quotient * stride[2];
  };
  const T* from = p.x + offset(p.x_stride);
  T* to = p.out + offset(p.out_stride);
  const int64_t pair = in_row.remainder * N;
  if (pair >= p.pairs) {  // beyond the rotated columns: a copy
    store_vector(to + pair + p.pairs, load_vector<N>(from + pair + p.pairs));
    return;
  }
  const int64_t first = Halves ? pair : 2 * pair, second = first + (Halves ? p.pairs : N);
  const T* cos = p.cos_table + offset(p.cos_stride) + pair;
  const T* sin = p.sin_table + offset(p.sin_stride) + pair;
  const int64_t other = Halves ? p.pairs : 0;
  const Vector<T, N> x[2] = {load_vector<N>(from + first), load_vector<N>(from + second)};
  const Vector<T, N> c[2] = {load_vector<N>(cos), load_vector<N>(cos + other)};
  const Vector<T, N> s[2] = {load_vector<N>(sin), load_vector<N>(sin + other)};
  Vector<T, N> y[2];
  rotate<T, N, Halves, Inverse>(x, c, s, y);
  store_vector(to + first, y[0]);
  store_vector(to + second, y[1]);
}

}  // namespace

void GpuOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                             const Tensor& inv_freq, double attention_scaling) {
  if (cos.numel() == 0) return;
  with_storage("rotary_table", cos.dtype(), [&]<class T>(T) {
    const int64_t half = inv_freq.dim(0);
    const auto go = [&]<int N>() {
      const TableOperands<T> p{cos.data<T>(),
                               rows_of("rotary_table", cos),
                               sin.data<T>(),
                               rows_of("rotary_table", sin),
                               positions.data<int64_t>(),
                               rows_of("rotary_table", positions),
                               Divisor(positions.dim(-1)),
                               inv_freq.data<float>(),
                               half,
                               Divisor(half / N),
                               divisible("rotary_table", positions.numel() * half / N),
                               static_cast<float>(attention_scaling)};
      launch_overlapped<rotary_table_pairs<T, N>>("rotary_table", {grid_for(p.total, kThreads)},
                                                  {kThreads}, 0, stream(), p);
    };
    constexpr int kPairs = 4;  // of a thread: more leave too few threads for a few thousand tokens
    constexpr int64_t kBytes = kPairs * sizeof(T);
    if (half % kPairs == 0 && rows_are_multiples_of(kBytes, cos) &&
        rows_are_multiples_of(kBytes, sin) && rows_are_vectors(inv_freq) && choose("vectors")) {
      return go.template operator()<kPairs>();
    }
    settle_for("scalars");
    go.template operator()<1>();
  });
}

void GpuOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       RotaryStyle style) {
  turn("rotary", out, x, cos, sin, style, false);
}

void GpuOps::do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                                const Tensor& sin, RotaryStyle style) {
  turn("rotary_backward", d_x, d_out, cos, sin, style, true);
}

void GpuOps::turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
                  const Tensor& sin, RotaryStyle style, bool inverse) {
  if (x.numel() == 0) return;
  const bool alike = cos.stride(0) == sin.stride(0) && cos.stride(1) == sin.stride(1);
  const bool half = style == RotaryStyle::half && !inverse && alike;
  if (half && choose("in_product", "half") && held_.rotate(out, x, cos, sin)) return;
  with_storage(op, x.dtype(), [&]<class T>(T) {
    RotaryOperands<T> p{};
    p.out = out.data<T>();
    p.x = x.data<T>();
    p.cos_table = cos.data<T>();
    p.sin_table = sin.data<T>();
    for (int i = 0; i < 3; ++i) {
      p.out_stride[i] = out.stride(i);
      p.x_stride[i] = x.stride(i);
    }
    p.cos_stride[0] = cos.dim(0) == 1 ? 0 : cos.stride(0);
    p.cos_stride[2] = cos.stride(1);
    p.sin_stride[0] = sin.dim(0) == 1 ? 0 : sin.stride(0);
    p.sin_stride[2] = sin.stride(1);
    p.heads = Divisor(x.dim(1));
    p.pairs = cos.dim(2) / 2;
    const bool halves = style == RotaryStyle::half;
    const std::string_view variant = halves ? "half" : "interleaved";
    const auto go = [&]<int N>() {
      constexpr int64_t kMostRows = 65535;  // of a grid
      p.work = Divisor((x.dim(3) - p.pairs) / N);
      p.total = divisible(op, x.dim(2) * p.work.value());
      const int64_t heads = x.dim(0) * x.dim(1);
      for (p.first = 0; p.first < heads; p.first += kMostRows) {
        const Dim grid{grid_for(p.total, kThreads),
                       static_cast<unsigned>(std::min(heads - p.first, kMostRows))};
        const auto turned = [&]<bool Halves, bool Inverse>() {
          launch_overlapped<rotary_rows<T, N, Halves, Inverse>>(op, grid, {kThreads}, 0, stream(),
                                                                p);
        };
        if (halves && inverse) turned.template operator()<true, true>();
        else if (halves) turned.template operator()<true, false>();
        else if (inverse) turned.template operator()<false, true>();
        else turned.template operator()<false, false>();
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
