// rms_norm, add_rms_norm (Zhang and Sennrich 2019) and layer_norm over the last axis. x [..., C],
// weight [C].
//
// Memory-bound: a block owns a row and reads it once, see row_slice.h. Rounds where ops.h says:
// R(n) before the weight (LLaMA), or only after it (Gemma).
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/row_slice.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

template <class T>
struct NormOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  const T* residual;  // null: none
  Rows residual_rows;
  T* sum;  // x + residual
  Rows sum_rows;
  const T* weight;
  const T* bias;  // null: none
  int64_t columns;
  float reciprocal_of_columns;  // a division takes as long as everything else between two loads
  float eps, weight_offset;
  bool round_before;  // R() between the norm and the weight
};

constexpr int kBlocks = 2;  // of 512 threads at once: at most 64 registers

// Inputs: 1, or 2 with a residual.
template <class T, int Wave, int N, int Own, bool Full, int Inputs>
__global__ void __launch_bounds__(kMostRowThreads, kBlocks) rms_norm_rows(NormOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const T* from = p.x + p.x_rows.offset(row);
  const T* residual = Inputs == 2 ? p.residual + p.residual_rows.offset(row) : nullptr;
  T* sum = Inputs == 2 ? p.sum + p.sum_rows.offset(row) : nullptr;
  RowSlice<T, N, Own, Full> x(p.columns), added(p.columns);
  x.load(from);
  if (Inputs == 2) added.load(residual);
  float squares = 0;
  x.each(from, [&](int64_t column, Vector<T, N>& v, int j) {
    if constexpr (Inputs == 2) {
      const Vector<T, N> r = added.at(residual, j);
      v = rounded_sum(v, r);
      store_vector(sum + column, v);
    }
    const Floats<T, N> element(v);
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fused_multiply_add(element[i], element[i], squares);
  });
  const float mean = block.sum(squares) / static_cast<float>(p.columns);
  const float factor = reciprocal_sqrt(mean + p.eps);
  T* out = p.out + p.out_rows.offset(row);
  x.each(Inputs == 2 ? sum : from, [&](int64_t column, Vector<T, N>& v, int) {
    const auto w = load_vector<N>(p.weight + column);
    const Floats<T, N> element(v);
    float n[N];
#pragma unroll
    for (int i = 0; i < N; ++i) n[i] = element[i] * factor;
    if (p.round_before && p.weight_offset == 0) {  // LLaMA
      v = rounded_product(narrowed<T>(n), w);
    } else {
      const Floats<T, N> weight(w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        n[i] = (p.weight_offset + weight[i]) * (p.round_before ? rounded<T>(n[i]) : n[i]);
      }
      v = narrowed<T>(n);
    }
    store_vector(out + column, v);
  });
}

template <class T, int Wave, int N, int Own, bool Full, bool Bias>
__global__ void __launch_bounds__(kMostRowThreads, kBlocks) layer_norm_rows(NormOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const T* from = p.x + p.x_rows.offset(row);
  RowSlice<T, N, Own, Full> x(p.columns);
  x.load(from);
  float sums[2] = {};  // two: half as long to wait for
  x.each(from, [&](int64_t, const Vector<T, N>& v, int) {
    const Floats<T, N> element(v);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i % 2] += element[i];
  });
  const float count = x.template count_of_wave<Wave>();
  const float sum_of_wave = warp_sum<Wave>(sums[0] + sums[1]);
  const float mean_of_wave = sum_of_wave * (count > 0 ? 1.0f / count : 0.0f);
  float squares[2] = {};
  x.each(from, [&](int64_t, const Vector<T, N>& v, int) {
    const Floats<T, N> element(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float deviation = element[i] - mean_of_wave;
      squares[i % 2] = fused_multiply_add(deviation, deviation, squares[i % 2]);
    }
  });
  const Moments all = block.moments({mean_of_wave, warp_sum<Wave>(squares[0] + squares[1]), count},
                                    p.reciprocal_of_columns);
  const float mean = all.mean;
  const float factor = reciprocal_sqrt(all.squares * p.reciprocal_of_columns + p.eps);
  T* out = p.out + p.out_rows.offset(row);
  x.each(from, [&](int64_t column, const Vector<T, N>& v, int) {
    const Floats<T, N> element(v), weight(load_vector<N>(p.weight + column));
    const Floats<T, N> bias(Bias ? load_vector<N>(p.bias + column) : Vector<T, N>{});
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      y[i] = fused_multiply_add((element[i] - mean) * factor, weight[i], bias[i]);
    }
    store_vector(out + column, narrowed<T>(y));
  });
}

template <class T>
void set_rows(const char* op, const Tensor& t, T*& pointer, Rows& rows) {
  pointer = t.data<std::remove_const_t<T>>();
  rows = rows_of(op, t);
}

bool is_vector(const Tensor& weight) {
  return !weight.defined() || reinterpret_cast<uintptr_t>(weight.raw()) % 16 == 0;
}

}  // namespace

void GpuOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                             const Tensor& residual, const Tensor& weight,
                             const RmsNormParams& params) {
  if (x.numel() == 0) return;
  with_storage("rms_norm", x.dtype(), [&]<class T>(T) {
    NormOperands<T> p{};
    set_rows("rms_norm", out, p.out, p.out_rows);
    set_rows("rms_norm", x, p.x, p.x_rows);
    p.weight = weight.data<T>();
    bool vectors = rows_are_vectors(out) && rows_are_vectors(x) && is_vector(weight);
    if (residual.defined()) {
      set_rows("rms_norm", residual, p.residual, p.residual_rows);
      set_rows("rms_norm", sum, p.sum, p.sum_rows);
      vectors = vectors && rows_are_vectors(residual) && rows_are_vectors(sum);
    }
    p.columns = x.dim(-1);
    p.eps = static_cast<float>(params.eps);
    p.weight_offset = static_cast<float>(params.weight_offset);
    p.round_before = params.rounding == WeightRounding::before;
    with_row_slices<T>(*this, p.x_rows.count, p.columns, vectors,
                       [&]<int Wave, int N, int Own, bool Full>(unsigned threads) {
                         const auto go = [&]<auto Kernel>() {
                           launch_overlapped<Kernel>("rms_norm",
                                                     {grid_of_rows("rms_norm", p.x_rows.count)},
                                                     {threads}, 0, stream(), p);
                         };
                         if (residual.defined()) {
                           go.template operator()<rms_norm_rows<T, Wave, N, Own, Full, 2>>();
                         } else {
                           go.template operator()<rms_norm_rows<T, Wave, N, Own, Full, 1>>();
                         }
                       });
  });
}

void GpuOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                         const RmsNormParams& params) {
  GpuOps::do_add_rms_norm({}, out, x, {}, weight, params);
}

void GpuOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, double eps) {
  if (x.numel() == 0) return;
  with_storage("layer_norm", x.dtype(), [&]<class T>(T) {
    NormOperands<T> p{};
    set_rows("layer_norm", out, p.out, p.out_rows);
    set_rows("layer_norm", x, p.x, p.x_rows);
    p.weight = weight.data<T>();
    p.bias = bias.defined() ? bias.data<T>() : nullptr;
    p.columns = x.dim(-1);
    p.reciprocal_of_columns = 1.0f / static_cast<float>(p.columns);
    p.eps = static_cast<float>(eps);
    const bool vectors =
        rows_are_vectors(out) && rows_are_vectors(x) && is_vector(weight) && is_vector(bias);
    with_row_slices<T>(*this, p.x_rows.count, p.columns, vectors,
                       [&]<int Wave, int N, int Own, bool Full>(unsigned threads) {
                         const auto go = [&]<bool Bias>() {
                           launch_overlapped<layer_norm_rows<T, Wave, N, Own, Full, Bias>>(
                               "layer_norm", {grid_of_rows("layer_norm", p.x_rows.count)},
                               {threads}, 0, stream(), p);
                         };
                         p.bias ? go.template operator()<true>() : go.template operator()<false>();
                       });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
