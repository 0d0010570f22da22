// What the vectorised kernels lack: f64 in doubles, whole numbers and bools in 64 bits, of which
// narrower ones keep the lowest. An element at a time, of any strides: right, and not tuned.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/numbers.h"
#include "kernels/ops/reals.h"
#include "kernels/ops/wholes.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <class V>
using ArithmeticOf = std::conditional_t<std::is_same_v<V, Whole>, Wholes, Reals<double>>;

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
// Of f64, floats of 8 bits, i8 and u8.
void multiply_plainly(GpuOps& ops, const GemmCall& call);

}  // namespace plumb::PLUMB_GPU_VENDOR
