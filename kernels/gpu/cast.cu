// cast and mask_rows: neighbouring threads along the rows. cast: a thread moves as many elements as
// take 16 bytes in the wider type, one where alignment forbids that or a type is no storage type;
// mask_rows one.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/numbers.h"
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

// width: of a row, in vectors.
template <class To, class From, int N>
__global__ void __launch_bounds__(kThreads) cast_vectors(CastOperands<To, From> p) {
  wait_for_previous_kernel();
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < p.total; i += step) {
    const Division at = divide(i, p.width);
    const int64_t column = at.remainder * N;
    float x[N];
    widen(load_vector<N>(p.x + p.x_rows.offset(at.quotient) + column), x);
    store_vector(p.out + p.out_rows.offset(at.quotient) + column, narrowed<To>(x));
  }
}

struct NumberOperands {
  void* out;
  DType to;
  Rows out_rows;
  const void* x;
  DType from;
  Rows x_rows;
  Divisor width;
  int64_t total;
};

// Of any two dtypes.
__global__ void __launch_bounds__(kThreads) cast_numbers(NumberOperands p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.width);
  store_number(p.to, p.out, p.out_rows.offset(at.quotient) + at.remainder,
               load_number(p.from, p.x, p.x_rows.offset(at.quotient) + at.remainder));
}

bool is_stored(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
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
  if (!is_stored(out.dtype()) || !is_stored(x.dtype())) {
    settle_for("numbers");
    const NumberOperands p{
        out.raw(), out.dtype(),        rows_of("cast", out), x.raw(),
        x.dtype(), rows_of("cast", x), Divisor(x.dim(-1)),   divisible("cast", x.numel())};
    return launch_overlapped<cast_numbers>("cast", {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                           stream(), p);
  }
  with_storage("cast", out.dtype(), [&]<class To>(To) {
    with_storage("cast", x.dtype(), [&]<class From>(From) {
      CastOperands<To, From> p{
          out.data<To>(), rows_of("cast", out), x.data<From>(), rows_of("cast", x), {}, 0};
      const auto go = [&]<int N>() {
        p.width = Divisor(x.dim(-1) / N);
        p.total = divisible("cast", x.numel() / N);
        constexpr auto kKernel = cast_vectors<To, From, N>;
        launch_overlapped<kKernel>("cast", {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(),
                                   p);
      };
      constexpr int N = std::min(kVector<To>, kVector<From>);
      if (rows_are_multiples_of(N * size_of(out.dtype()), out) &&
          rows_are_multiples_of(N * size_of(x.dtype()), x) && choose("vectors")) {
        return go.template operator()<N>();
      }
      settle_for("scalars");
      go.template operator()<1>();
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
