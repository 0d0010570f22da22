// Rows of strided tensors, and pieces of rows as float32.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/simd.h"

namespace plumb::cpu {

// Long rows are handled in pieces of this many elements, which stay in the first-level cache.
inline constexpr int64_t kPiece = 1024;
// Rows up to this length are widened to float32 once and kept there between passes.
inline constexpr int64_t kLine = 4096;

// Where the n-th row of a tensor starts: all axes but the last `inner` number the rows, in order.
class RowOffsets {
 public:
  explicit RowOffsets(const Tensor& t, int inner = 1) {
    for (int axis = t.rank() - inner - 1; axis >= 0; --axis) {
      const int64_t extent = t.dim(axis), stride = t.stride(axis);
      count_ *= extent;
      if (extent == 1) continue;
      if (axes_ > 0 && stride == strides_[axes_ - 1] * extents_[axes_ - 1]) {
        extents_[axes_ - 1] *= extent;  // the two axes are one
      } else {
        extents_[axes_] = extent;
        strides_[axes_++] = stride;
      }
    }
  }

  int64_t count() const { return count_; }
  bool uniform() const { return axes_ <= 1; }  // one stride leads from each row to the next
  int64_t stride() const { return axes_ ? strides_[0] : 0; }

  // In elements from the tensor's first one.
  int64_t operator[](int64_t row) const {
    int64_t offset = 0;
    for (int i = 0; i + 1 < axes_; ++i) {
      offset += row % extents_[i] * strides_[i];
      row /= extents_[i];
    }
    return axes_ ? offset + row * strides_[axes_ - 1] : 0;
  }

 private:
  int64_t count_ = 1;
  int axes_ = 0;  // innermost first
  std::array<int64_t, kMaxRank> extents_{};
  std::array<int64_t, kMaxRank> strides_{};
};

// The innermost axes of tensors of one shape that are one block of memory, or one repeated element
// (a broadcast), in each of them.
struct Block {
  int axes = 1;
  int64_t length = 1;  // elements
};
// Whether it is one element in the innermost axes of a block.
inline bool repeats_last(const Tensor& t, int axes = 1) {
  for (int axis = 1; axis <= axes; ++axis) {
    if (t.dim(-axis) > 1) return t.stride(-axis) == 0;
  }
  return false;
}
template <class Tensors>
Block common_block(const Tensors& tensors) {
  const Tensor& first = *tensors[0];
  Block block{1, first.dim(-1)};
  for (int axis = first.rank() - 2; axis >= 0; --axis, ++block.axes) {
    if (first.dim(axis) == 1) continue;
    for (const Tensor* t : tensors) {
      const bool repeated =
          block.length > 1 && t->stride(axis) == 0 && repeats_last(*t, block.axes);
      if (t->stride(axis) != block.length && !repeated) return block;
    }
    block.length *= first.dim(axis);
  }
  return block;
}

// Whether the device computes in it.
inline bool is_stored(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// A storage dtype of this device with its conversions.
class Format {
 public:
  Format(const Simd& simd, DType dtype)
      : stored_(dtype == DType::f32    ? kF32
                : dtype == DType::bf16 ? kBf16
                                       : kF16),
        rows_(simd.rows[stored_]) {}

  bool wide() const { return stored_ == kF32; }
  int64_t size() const { return wide() ? 4 : 2; }
  const RowFunctions& rows() const { return rows_; }

  const char* at(const Tensor& t, int64_t offset) const {
    return static_cast<const char*>(t.raw()) + offset * size();
  }
  char* at(char* base, int64_t offset) const { return base + offset * size(); }
  const char* at(const char* base, int64_t offset) const { return base + offset * size(); }

  // n elements as float32: in `buffer`, or where they are when they are float32 already.
  const float* read(const void* from, float* buffer, int64_t n) const {
    if (wide()) return static_cast<const float*>(from);
    widen(buffer, from, n);
    return buffer;
  }
  // The same, always in `buffer`.
  void widen(float* buffer, const void* from, int64_t n) const { rows_.widen(buffer, from, n); }
  // R(): n float32 values stored at `to`.
  void write(void* to, const float* from, int64_t n) const {
    if (to != from) rows_.narrow(to, from, n);
  }

 private:
  Stored stored_;
  const RowFunctions& rows_;
};

}  // namespace plumb::cpu
