// Strided operands in the forms that kernels take: axes from the innermost one on, and rows.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/core/error.h"
#include "kernels/core/tensor.h"
#include "kernels/portable/host_arguments.h"

namespace plumb::portable {

inline u64 address(const Tensor& t) { return t.defined() ? reinterpret_cast<u64>(t.raw()) : 0; }

using Strides = std::array<i64, kMaxRank>;

inline Strides strides_of(const Tensor& t) {
  Strides out{};
  for (int i = 0; t.defined() && i < t.rank(); ++i) out[static_cast<size_t>(i)] = t.stride(i);
  return out;
}

inline i32 extent_of(const char* op, int64_t extent) {
  require<Unsupported>(extent < INT32_MAX, op, "an axis of ", extent, " elements, at most ",
                       INT32_MAX - 1, " are implemented");
  return static_cast<i32>(extent);
}

// What some operands of one shape have in common, with neighbouring axes merged where all allow it.
template <size_t Operands>
struct Layout {
  i32 axes = 0;
  i32 extent[kMaxRank] = {};
  i64 stride[Operands][kMaxRank] = {};
  i64 total = 1;

  // The first `rank` axes of the shape.
  Layout(const char* op, const Shape& shape, int rank, const std::array<Strides, Operands>& given) {
    for (int i = rank - 1; i >= 0; --i) {
      total *= shape[i];
      if (shape[i] == 1) continue;
      if (!merge(op, shape[i], i, given)) add(op, shape[i], i, given);
    }
  }

  void copy_extents(i32 (&to)[kMaxRank]) const { std::copy_n(extent, kMaxRank, to); }
  void copy_strides(size_t operand, i64 (&to)[kMaxRank]) const {
    std::copy_n(stride[operand], kMaxRank, to);
  }

 private:
  bool merge(const char* op, int64_t outer, int axis, const std::array<Strides, Operands>& given) {
    if (axes == 0 || extent[axes - 1] > INT32_MAX / outer) return false;
    for (size_t o = 0; o < Operands; ++o) {
      if (given[o][static_cast<size_t>(axis)] != stride[o][axes - 1] * extent[axes - 1])
        return false;
    }
    extent[axes - 1] = extent_of(op, extent[axes - 1] * outer);
    return true;
  }
  void add(const char* op, int64_t of_axis, int axis, const std::array<Strides, Operands>& given) {
    extent[axes] = extent_of(op, of_axis);
    for (size_t o = 0; o < Operands; ++o) stride[o][axes] = given[o][static_cast<size_t>(axis)];
    ++axes;
  }
};

// The rows, last axes, of a tensor; throws Unsupported when more than three outer axes remain.
inline Rows rows_of(const char* op, const Tensor& t) {
  const Layout<1> outer(op, t.shape(), t.rank() - 1, {strides_of(t)});
  require<Unsupported>(outer.axes <= 3, op, "a tensor of shape ", t.shape(), " with ", outer.axes,
                       " separate outer strides; at most 3 are implemented: make it contiguous");
  return {outer.stride[0][2], outer.stride[0][1], outer.stride[0][0], std::max(outer.extent[1], 1),
          std::max(outer.extent[0], 1)};
}
inline int64_t row_count(const Tensor& t) { return t.dim(-1) > 0 ? t.numel() / t.dim(-1) : 0; }

}  // namespace plumb::portable
