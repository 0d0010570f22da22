// rms_norm and add_rms_norm (Zhang and Sennrich 2019) over the last axis. x [..., C], weight [C].
//
// Memory-bound: a block owns a row and reads it once, see row_slice.h. Rounds where ops.h says:
// R(n) before the weight (LLaMA), or only after it (Gemma).
#include "kernels/gpu/norms.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

// Inputs: 1, or 2 with a residual.
template <class T, int Wave, int N, int Own, bool Full, int Inputs>
__global__ void __launch_bounds__(kMostRowThreads, kNormBlocks) rms_norm_rows(NormOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const T* from = p.x + p.x_rows.offset(row);
  const T* residual = Inputs == 2 ? p.residual + p.residual_rows.offset(row) : nullptr;
  T* sum = Inputs == 2 ? p.sum + p.sum_rows.offset(row) : nullptr;
  RowSlice<T, N, Own, Full> x(p.columns), added(p.columns);
  // Of one vector a thread, it can afford to wait for the weight and the row together.
  RowSlice<T, N, Own == 1 ? 1 : 0> weights(p.columns);
  x.load(from);
  if (Inputs == 2) added.load(residual);
  weights.load(p.weight);
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
  x.each(Inputs == 2 ? sum : from, [&](int64_t column, Vector<T, N>& v, int j) {
    v = normalised(v, weights.at(p.weight, j), factor, p.weight_offset, p.round_before);
    store_vector(out + column, v);
  });
}

}  // namespace

void GpuOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                             const Tensor& residual, const Tensor& weight,
                             const RmsNormParams& params) {
  if (x.numel() == 0) return;
  const bool held = residual.defined() && HeldBack::takes_rows({&sum, &out, &x, &residual}) &&
                    is_vector(weight) && choose("vectors", "own1") &&
                    held_.add_norm(sum, x, residual, {out, weight, params});
  if (held) return;
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
  if (x.numel() == 0) return;
  if (HeldBack::takes_rows({&out, &x}) && is_vector(weight) && choose("vectors", "own1")) {
    return held_.norm(out, x, weight, params);
  }
  GpuOps::do_add_rms_norm({}, out, x, {}, weight, params);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
