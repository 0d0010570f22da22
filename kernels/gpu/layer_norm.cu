// layer_norm over the last axis. x [..., C], weight and bias [C].
//
// Memory-bound: a block owns a row and reads it once, see row_slice.h. The deviations are from the
// mean of each wave first (Moments in reduce.h), so that a row is waited for once.
#include "kernels/gpu/norms.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

template <class T, int Wave, int N, int Own, bool Full, bool Bias>
__global__ void __launch_bounds__(kMostRowThreads, kNormBlocks) layer_norm_rows(NormOperands<T> p) {
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

}  // namespace

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
