// The gradient of softmax over the last axis: R(y (d_out - sum(y d_out))).
//
// Memory-bound: a block owns a row and reads it once, see row_slice.h.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/row_slice.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

template <class T>
struct SoftmaxBackwardOperands {
  T* d_x;
  const T* y;
  const T* d_out;
  Rows d_x_rows, y_rows, d_out_rows;
  int64_t columns;
};

template <class T, int Wave, int N, int Own, bool Full>
__global__ void __launch_bounds__(kMostRowThreads, 2)
    softmax_backward_rows(SoftmaxBackwardOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const T* y_row = p.y + p.y_rows.offset(row);
  const T* d_row = p.d_out + p.d_out_rows.offset(row);
  RowSlice<T, N, Own, Full> y(p.columns), d(p.columns);
  y.load(y_row);
  d.load(d_row);
  float sum = 0;
  y.each(y_row, [&](int64_t, const Vector<T, N>& v, int j) {
    const Floats<T, N> weight(v), gradient(d.at(d_row, j));
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fused_multiply_add(weight[i], gradient[i], sum);
  });
  sum = block.sum(sum);
  T* to = p.d_x + p.d_x_rows.offset(row);
  y.each(y_row, [&](int64_t column, const Vector<T, N>& v, int j) {
    const Floats<T, N> weight(v), gradient(d.at(d_row, j));
    float out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = weight[i] * (gradient[i] - sum);
    store_vector(to + column, narrowed<T>(out));
  });
}

}  // namespace

void GpuOps::do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) {
  constexpr const char* kOp = "softmax_backward";
  if (y.numel() == 0) return;
  with_storage(kOp, y.dtype(), [&]<class T>(T) {
    const SoftmaxBackwardOperands<T> p{d_x.data<T>(),     y.data<T>(),     d_out.data<T>(),
                                       rows_of(kOp, d_x), rows_of(kOp, y), rows_of(kOp, d_out),
                                       y.dim(-1)};
    const bool vectors = rows_are_vectors(d_x) && rows_are_vectors(y) && rows_are_vectors(d_out);
    with_row_slices<T>(*this, p.y_rows.count, p.columns, vectors,
                       [&]<int Wave, int N, int Own, bool Full>(unsigned threads) {
                         launch_overlapped<softmax_backward_rows<T, Wave, N, Own, Full>>(
                             kOp, {grid_of_rows(kOp, p.y_rows.count)}, {threads}, 0, stream(), p);
                       });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
