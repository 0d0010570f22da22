// Products of float64 matrices, cut into tiles and shared by threads. Every element is one sum in
// the order of k, of separately rounded products: the bits of the plain loop, whatever the machine.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace plumb {

class ThreadPool;

struct Float64Gemm {
  int64_t m = 0, n = 0, k = 0;
  const double* a = nullptr;  // [m, k], rows without gaps
  const void* b = nullptr;    // element (k, n) at k * b_row + n * b_column, one of which is 1
  int64_t b_row = 0, b_column = 0;
  double* out = nullptr;         // [m, n]
  double* magnitudes = nullptr;  // [m, n], sum over k of |a b|; null: not wanted
  DType b_dtype = DType::f64;    // what is narrower is widened as it is used
};

// On the calling thread where there is no pool.
void float64_gemm(const Float64Gemm& gemm, ThreadPool* pool);

}  // namespace plumb
