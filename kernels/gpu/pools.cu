// Pools and upsampling of the last two axes: a thread makes a result.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

// Results of planes.
template <class T>
struct PlaneOperands {
  T* out;
  Rows out_planes;
  int64_t out_row;  // elements from one row to the next
  const T* x;
  Rows x_planes;
  int64_t x_row;
  Divisor width, height;  // of out
  int64_t total;          // results

  PlaneOperands(const char* op, const Tensor& to, const Tensor& from)
      : out(to.data<T>()),
        out_planes(planes_of(op, to)),
        out_row(to.stride(2)),
        x(from.data<T>()),
        x_planes(planes_of(op, from)),
        x_row(from.stride(2)),
        width(to.dim(3)),
        height(to.dim(2)),
        total(divisible(op, to.numel())) {}

  // Their first elements, wherever the rows are.
  static Rows planes_of(const char* op, const Tensor& t) { return rows_of(op, t, 2); }
};

struct Place {
  int64_t plane, row, column;
};

template <class T>
__device__ Place place_of(const PlaneOperands<T>& p, int64_t i) {
  const Division line = divide(i, p.width), plane = divide(line.quotient, p.height);
  return {plane.quotient, plane.remainder, line.remainder};
}

template <class T, bool Mean>
__global__ void __launch_bounds__(kThreads)
    pool_windows(PlaneOperands<T> p, Windows down, Windows across, PoolParams params) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Place at = place_of(p, i);
  const T* x = p.x + p.x_planes.offset(at.plane);
  float value = Mean ? 0 : -INFINITY;
  int64_t elements = 0;
  for (int64_t k = 0; k < params.kernel[0]; ++k) {
    const int64_t row = down.source(at.row, k);
    if (row < 0) continue;
    for (int64_t l = 0; l < params.kernel[1]; ++l) {
      const int64_t column = across.source(at.column, l);
      if (column < 0) continue;
      const float element = to_float(x[row * p.x_row + column]);
      if (Mean) value += element;
      else if (element > value || element != element) value = element;
      ++elements;
    }
  }
  if (Mean) value /= static_cast<float>(divisor_of_mean(params, elements));
  p.out[p.out_planes.offset(at.plane) + at.row * p.out_row + at.column] = from_float<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    take_nearest(PlaneOperands<T> p, int64_t rows, int64_t columns, float down, float across) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Place at = place_of(p, i);
  const T* x = p.x + p.x_planes.offset(at.plane);
  p.out[p.out_planes.offset(at.plane) + at.row * p.out_row + at.column] =
      x[nearest_source(at.row, down, rows) * p.x_row + nearest_source(at.column, across, columns)];
}

}  // namespace

void GpuOps::do_pool(const PoolCall& call) {
  const char* op = call.row.name;
  if (call.out.numel() == 0) return;
  with_storage(op, call.x.dtype(), [&]<class T>(T) {
    const PlaneOperands<T> p(op, call.out, call.x);
    const auto go = [&]<bool Mean>() {
      launch_overlapped<pool_windows<T, Mean>>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                               stream(), p, call.windows(0), call.windows(1),
                                               call.params);
    };
    call.is_mean() ? go.template operator()<true>() : go.template operator()<false>();
  });
}

void GpuOps::do_upsample_nearest2d(const Tensor& out, const Tensor& x) {
  constexpr const char* kOp = "upsample_nearest2d";
  if (out.numel() == 0) return;
  with_storage(kOp, x.dtype(), [&]<class T>(T) {
    const PlaneOperands<T> p(kOp, out, x);
    launch_overlapped<take_nearest<T>>(kOp, {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(),
                                       p, x.dim(2), x.dim(3), nearest_scale(x.dim(2), out.dim(2)),
                                       nearest_scale(x.dim(3), out.dim(3)));
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
