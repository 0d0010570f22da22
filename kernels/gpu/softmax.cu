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

template <class T, int Wave, int N, int Own>
__global__ void __launch_bounds__(kMostRowThreads)
    softmax_rows(T* out, Rows out_rows, const T* x, Rows x_rows, int64_t columns) {
  const auto at = [&](int64_t row, const T*(&from)[1]) { from[0] = x + x_rows.offset(row); };
  const auto make = [](int64_t, const Vector<T, N>(&in)[1], float(&v)[N], bool) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = to_float(in[0][i]);
  };
  const auto each = [&](auto& slice, int64_t row, auto fetch_next) {
    float largest = -INFINITY;
    slice.first(make, [&](int64_t, const float(&v)[N]) {
#pragma unroll
      for (int i = 0; i < N; ++i) largest = v[i] > largest || v[i] != v[i] ? v[i] : largest;
    });
    fetch_next();
    largest = block_max<Wave>(largest);
    // Nothing to subtract from a row of minus infinity: exp(-inf - 0) = 0 for every element.
    const float shift = largest == -INFINITY ? 0.0f : largest;
    float sum = 0;
    slice.again(make, [&](int64_t, float(&v)[N]) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = exponential<T>(v[i] - shift);
        sum += v[i];
      }
    });
    sum = block_sum<Wave>(sum);
    const float factor = sum == 0 ? 1.0f : 1.0f / sum;
    T* to = out + out_rows.offset(row);
    slice.again(make, [&](int64_t column, const float(&v)[N]) {
      Vector<T, N> y;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        // Values that are read again have not been through the exponential.
        y[i] = from_float<T>((Own > 0 ? v[i] : exponential<T>(v[i] - shift)) * factor);
      }
      store_vector(to + column, y);
    });
  };
  for_each_row<T, N, Own, 1>(x_rows.count, columns, at, each);
}

}  // namespace

void GpuOps::do_softmax(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  with_storage("softmax", x.dtype(), [&]<class T>(T) {
    const Rows to = rows_of("softmax", out), from = rows_of("softmax", x);
    const bool vectors = rows_are_vectors(out) && rows_are_vectors(x);
    with_row_slices<T>(*this, x.dim(-1), vectors, [&]<int Wave, int N, int Own>(unsigned threads) {
      constexpr auto kKernel = softmax_rows<T, Wave, N, Own>;
      launch<kKernel>("softmax", {blocks_for_rows<kKernel>(*this, from.count, threads)}, {threads},
                      0, stream(), out.data<T>(), to, static_cast<const T*>(x.data<T>()), from,
                      x.dim(-1));
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
