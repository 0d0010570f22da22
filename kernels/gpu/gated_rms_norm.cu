// Mamba2's gated RMSNorm over groups of channels: v = x silu(gate), R(w R(v / rms(v))). x, gate
// [..., C], weight [C]; x and out in X, gate and weight in T.
//
// A block owns a group of one row. A thread keeps its first vector, most often the only one, and
// the weights for it in registers; what a group has beyond these is read twice, the second time
// from the caches.
#include <algorithm>

#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kMostThreads = 512;

template <class X, class T>
struct GatedOperands {
  X* out;
  Rows out_rows;
  const X* x;
  Rows x_rows;
  const T* gate;
  Rows gate_rows;
  const T* weight;
  Divisor groups;  // of a row
  int64_t width, total;
  float eps;
};

// x silu(gate) in float32.
template <class X, class T, int N>
struct Gated {
  float v[N] = {};
  Gated() = default;
  __device__ Gated(const X* x, const T* gate) {
    const Floats<X, N> value(load_vector<N>(x));
    const Floats<T, N> by(load_vector<N>(gate));
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = value[i] * activate<X, Activation::silu>(by[i]);
  }
  // `sum` and the squares.
  __device__ float add_squares(float sum) const {
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fused_multiply_add(v[i], v[i], sum);
    return sum;
  }
};

template <class X, class T, int Wave, int N>
__global__ void __launch_bounds__(kMostThreads) gated_groups(GatedOperands<X, T> p) {
  BlockReduction<Wave> over_block;
  const int64_t step = int64_t{block_size().x} * N, begin = int64_t{thread_index().x} * N;
  if (begin < p.width) {
    prefetch(p.weight + divide(block_index().x, p.groups).remainder * p.width + begin);
  }
  wait_for_previous_kernel();
  for (int64_t group = block_index().x; group < p.total; group += grid_size().x) {
    const Division at = divide(group, p.groups);
    const int64_t first = at.remainder * p.width;
    const X* x = p.x + p.x_rows.offset(at.quotient) + first;
    const T* gate = p.gate + p.gate_rows.offset(at.quotient) + first;
    const T* weight = p.weight + first;
    const bool inside = begin < p.width;
    Gated<X, T, N> kept;
    Vector<T, N> kept_weight{};
    if (inside) {
      kept = {x + begin, gate + begin};
      kept_weight = load_vector<N>(weight + begin);
    }
    float squares = kept.add_squares(0.0f);
    for (int64_t i = begin + step; i < p.width; i += step) {
      squares = Gated<X, T, N>(x + i, gate + i).add_squares(squares);
    }
    const float mean = over_block.sum(squares) / static_cast<float>(p.width);
    const float factor = reciprocal_sqrt(mean + p.eps);
    X* out = p.out + p.out_rows.offset(at.quotient) + first;
    const auto normalise = [&](int64_t i, const Gated<X, T, N>& gated, const Vector<T, N>& by) {
      const Floats<T, N> w(by);
      float normed[N], y[N];
#pragma unroll
      for (int j = 0; j < N; ++j) normed[j] = gated.v[j] * factor;
      widen(narrowed<X>(normed), y);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] *= w[j];
      store_vector(out + i, narrowed<X>(y));
    };
    if (inside) normalise(begin, kept, kept_weight);
    for (int64_t i = begin + step; i < p.width; i += step) {
      normalise(i, Gated<X, T, N>(x + i, gate + i), load_vector<N>(weight + i));
    }
  }
}

}  // namespace

void GpuOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                               const Tensor& weight, const GatedRmsNormParams& params) {
  if (x.numel() == 0) return;
  const auto whole = [&](const Tensor& t) {
    return rows_are_vectors(t) && params.group_size * size_of(t.dtype()) % 16 == 0;
  };
  const bool vectors = whole(out) && whole(x) && whole(gate) && whole(weight) && choose("vectors");
  if (!vectors) settle_for("scalars");
  const auto go = [&]<class X, class T>() {
    GatedOperands<X, T> p{};
    p.out = out.data<X>();
    p.out_rows = rows_of("gated_rms_norm", out);
    p.x = x.data<X>();
    p.x_rows = rows_of("gated_rms_norm", x);
    p.gate = gate.data<T>();
    p.gate_rows = rows_of("gated_rms_norm", gate);
    p.weight = weight.data<T>();
    p.width = params.group_size;
    p.groups = Divisor(x.dim(-1) / p.width);
    p.total = divisible("gated_rms_norm", x.numel() / p.width);
    p.eps = static_cast<float>(params.eps);
    const auto launched = [&]<int N>() {
      with_wave(stream(), [&]<int Wave>() {
        const int64_t threads =
            std::min<int64_t>((p.width / N + Wave - 1) / Wave * Wave, kMostThreads);
        constexpr auto kKernel = gated_groups<X, T, Wave, N>;
        launch_overlapped<kKernel>("gated_rms_norm", {grid_for(p.total, 1)},
                                   {static_cast<unsigned>(threads)}, 0, stream(), p);
      });
    };
    vectors ? launched.template operator()<kVector<X>>() : launched.template operator()<1>();
  };
  with_storage("gated_rms_norm", gate.dtype(), [&]<class T>(T) {
    if (x.dtype() == gate.dtype()) return go.template operator()<T, T>();
    go.template operator()<float, T>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
