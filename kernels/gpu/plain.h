// What the vectorised kernels lack: f64 in doubles, whole numbers and bools in 64 bits, of which
// narrower ones keep the lowest. An element at a time, of any strides: right, and not tuned.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/numbers.h"
#include "kernels/ops/wholes.h"

namespace plumb::PLUMB_GPU_VENDOR {

// The arithmetic of a formula (kernels/ops/formulas.h) in float64.
struct DoubleArithmetic {
  double of_call, second;  // its numbers

  __device__ double number() const { return of_call; }
  __device__ double shift() const { return second; }
  __device__ double constant(int c) const { return c; }
  __device__ double real(double x) const { return x; }
  __device__ double infinity() const { return static_cast<double>(INFINITY); }
  __device__ double over_number(double x) const { return x / of_call; }
  __device__ double round(double x) const { return x; }
  template <class V>
  __device__ V select(bool chosen, V a, V b) const {
    return chosen ? a : b;
  }
  __device__ double reciprocal_root(double x) const { return 1 / ::sqrt(x); }
  __device__ double abs(double x) const { return ::fabs(x); }
  __device__ double floor(double x) const { return ::floor(x); }
  __device__ double nearest(double x) const { return ::rint(x); }  // of two the even one
  __device__ double sqrt(double x) const { return ::sqrt(x); }
  __device__ double exp(double x) const { return ::exp(x); }
  __device__ double expm1(double x) const { return ::expm1(x); }
  __device__ double log(double x) const { return ::log(x); }
  __device__ double log1p(double x) const { return ::log1p(x); }
  __device__ double sin(double x) const { return ::sin(x); }
  __device__ double cos(double x) const { return ::cos(x); }
  __device__ double erf(double x) const { return ::erf(x); }
  __device__ double multiply_add(double a, double b, double c) const { return ::fma(a, b, c); }
  __device__ double pow(double a, double b) const { return ::pow(a, b); }
  __device__ double tanh(double x) const { return ::tanh(x); }
  __device__ double silu(double x) const { return logistic(x, x); }
  __device__ double gelu(double x) const { return 0.5 * x * ::erfc(-x * 0.70710678118654752); }
  __device__ double gelu_tanh(double x) const {
    return logistic(x, 1.5957691216057308 * (x + 0.044715 * x * x * x));
  }

 private:
  __device__ static double logistic(double x, double z) {  // x / (1 + e^-z), without overflow
    const double e = ::exp(-::fabs(z));
    return (z < 0 ? x * e : x) / (1 + e);
  }
};

template <class V>
using ArithmeticOf = std::conditional_t<std::is_same_v<V, Whole>, Wholes, DoubleArithmetic>;

// Element `at` of those at p: of f64, or of a whole number or bool.
template <class V>
__device__ V load_plain(DType dtype, const void* p, int64_t at) {
  if constexpr (std::is_same_v<V, Whole>) return {load_number(dtype, p, at).i};
  else return static_cast<const double*>(p)[at];
}
template <class V>
__device__ void store_plain(DType dtype, void* p, int64_t at, V x) {
  if constexpr (std::is_same_v<V, Whole>) store_number(dtype, p, at, {true, x.i, 0});
  else static_cast<double*>(p)[at] = x;
}
template <class V>
__device__ V plain_number(int64_t i) {
  if constexpr (std::is_same_v<V, Whole>) return {i};
  else return static_cast<double>(i);
}

inline bool computes_plainly(DType dtype) { return dtype == DType::f64 || is_whole(dtype); }

void map_plainly(GpuOps& ops, const MapCall& call);
void reduce_plainly(GpuOps& ops, const ReduceCall& call);
void cumsum_plainly(GpuOps& ops, const Tensor& out, const Tensor& x, int axis);
void add_by_ids_plainly(GpuOps& ops, const IndexAddCall& call);
// Of f64, floats of 8 bits, i8 and u8.
void multiply_plainly(GpuOps& ops, const GemmCall& call);

}  // namespace plumb::PLUMB_GPU_VENDOR
