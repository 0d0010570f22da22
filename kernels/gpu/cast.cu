// cast and mask_rows: one element per thread, neighbouring threads along the rows.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class To, class From>
struct CastOperands {
  To* out;
  Rows out_rows;
  const From* x;
  Rows x_rows;
  Divisor width;
  int64_t total;
};

template <class To, class From>
__global__ void __launch_bounds__(kThreads) cast_elements(CastOperands<To, From> p) {
  wait_for_previous_kernel();
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < p.total; i += step) {
    const Division at = divide(i, p.width);
    p.out[p.out_rows.offset(at.quotient) + at.remainder] =
        from_float<To>(to_float(p.x[p.x_rows.offset(at.quotient) + at.remainder]));
  }
}

template <class T>
struct MaskOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  const bool* valid;
  int64_t valid_row;
  Divisor width, tokens;
  int64_t total;
};

template <class T>
__global__ void __launch_bounds__(kThreads) keep_valid_rows(MaskOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < p.total; i += step) {
    const Division at = divide(i, p.width), token = divide(at.quotient, p.tokens);
    const bool keep = p.valid[token.quotient * p.valid_row + token.remainder];
    p.out[p.out_rows.offset(at.quotient) + at.remainder] =
        keep ? p.x[p.x_rows.offset(at.quotient) + at.remainder] : from_float<T>(0.0f);
  }
}

}  // namespace

void GpuOps::do_cast(const Tensor& out, const Tensor& x) {
  if (x.numel() == 0) return;
  settle_for("scalars");
  with_storage("cast", out.dtype(), [&]<class To>(To) {
    with_storage("cast", x.dtype(), [&]<class From>(From) {
      const CastOperands<To, From> p{out.data<To>(),     rows_of("cast", out),
                                     x.data<From>(),     rows_of("cast", x),
                                     Divisor(x.dim(-1)), divisible("cast", x.numel())};
      constexpr auto kKernel = cast_elements<To, From>;
      launch_overlapped<kKernel>("cast", {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(), p);
    });
  });
}

void GpuOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  if (x.numel() == 0) return;
  settle_for("scalars");
  with_storage("mask_rows", x.dtype(), [&]<class T>(T) {
    const MaskOperands<T> p{
        out.data<T>(),           rows_of("mask_rows", out), x.data<T>(),
        rows_of("mask_rows", x), valid.data<bool>(),        valid.stride(0),
        Divisor(x.dim(-1)),      Divisor(x.dim(1)),         divisible("mask_rows", x.numel())};
    launch_overlapped<keep_valid_rows<T>>("mask_rows", {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                          stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
