// What the kernels of rms_norm and layer_norm share: operands, and which rows are vectors.
#pragma once

#include "kernels/gpu/reduce.h"
#include "kernels/gpu/row_slice.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <class T>
struct NormOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  const T* residual;  // null: none
  Rows residual_rows;
  T* sum;  // x + residual
  Rows sum_rows;
  const T* weight;
  const T* bias;  // null: none
  int64_t columns;
  float reciprocal_of_columns;  // a division takes as long as everything else between two loads
  float eps, weight_offset;
  bool round_before;  // R() between the norm and the weight
};

// R(w R(v factor)), or rounded after the weight only.
template <class T, int N>
__device__ inline Vector<T, N> normalised(const Vector<T, N>& v, const Vector<T, N>& w,
                                          float factor, float weight_offset, bool round_before) {
  const Floats<T, N> element(v);
  float n[N];
#pragma unroll
  for (int i = 0; i < N; ++i) n[i] = element[i] * factor;
  if (round_before && weight_offset == 0) return rounded_product(narrowed<T>(n), w);  // LLaMA
  const Floats<T, N> weight(w);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    n[i] = (weight_offset + weight[i]) * (round_before ? rounded<T>(n[i]) : n[i]);
  }
  return narrowed<T>(n);
}

inline constexpr int kNormBlocks = 2;  // of 512 threads at once: at most 64 registers

template <class T>
void set_rows(const char* op, const Tensor& t, T*& pointer, Rows& rows) {
  pointer = t.data<std::remove_const_t<T>>();
  rows = rows_of(op, t);
}

inline bool is_vector(const Tensor& weight) {
  return !weight.defined() || reinterpret_cast<uintptr_t>(weight.raw()) % 16 == 0;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
