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
