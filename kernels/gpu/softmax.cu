// softmax over the last axis: R(exp(x - max) / sum). A row of minus infinity gives zeros.
//
// Memory-bound: a block owns a row and reads it once, see row_slice.h. This is the composed path,
// where the scores exist anyway; attention in one go is sdpa.cu.
#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/row_slice.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

template <class T, int Wave, int N, int Own, bool Full>
__global__ void __launch_bounds__(kMostRowThreads, 2)
    softmax_rows(T* out, Rows out_rows, const T* x, Rows x_rows, int64_t columns) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const T* from = x + x_rows.offset(row);
  RowSlice<T, N, Own, Full> slice(columns);
  slice.load(from);
  float largest = -INFINITY;
  slice.each(from, [&](int64_t, const Vector<T, N>& v, int) {
    const Floats<T, N> score(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      largest = score[i] > largest || score[i] != score[i] ? score[i] : largest;
    }
  });
  largest = block.max(largest);
  // Nothing to subtract from a row of minus infinity: exp(-inf - 0) = 0 for every element.
  const float shift = largest == -INFINITY ? 0.0f : largest;
  float sum = 0, kept[Own > 0 ? Own : 1][N] = {};
  slice.each(from, [&](int64_t, const Vector<T, N>& v, int j) {
    const Floats<T, N> score(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float weight = exponential<T>(score[i] - shift);
      if (Own > 0) kept[j][i] = weight;
      sum += weight;
    }
  });
  sum = block.sum(sum);
  const float factor = sum == 0 ? 1.0f : 1.0f / sum;
  T* to = out + out_rows.offset(row);
  slice.each(from, [&](int64_t column, const Vector<T, N>& v, [[maybe_unused]] int j) {
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Own > 0) {
        y[i] = kept[j][i] * factor;
      } else {
        y[i] = exponential<T>(to_float(v[i]) - shift) * factor;
      }
    }
    store_vector(to + column, narrowed<T>(y));
  });
}

}  // namespace

void GpuOps::do_softmax(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  with_storage("softmax", x.dtype(), [&]<class T>(T) {
    const Rows to = rows_of("softmax", out), from = rows_of("softmax", x);
    const bool vectors = rows_are_vectors(out) && rows_are_vectors(x);
    with_row_slices<T>(*this, from.count, x.dim(-1), vectors,
                       [&]<int Wave, int N, int Own, bool Full>(unsigned threads) {
                         constexpr auto kKernel = softmax_rows<T, Wave, N, Own, Full>;
                         launch_overlapped<kKernel>(
                             "softmax", {grid_of_rows("softmax", from.count)}, {threads}, 0,
                             stream(), out.data<T>(), to, static_cast<const T*>(x.data<T>()), from,
                             x.dim(-1));
                       });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
