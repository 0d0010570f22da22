// Rows: where the rows of a strided tensor start, in a form that a kernel can take by value.
#pragma once

#include "kernels/core/error.h"
#include "kernels/core/tensor.h"
#include "kernels/gpu/divisor.h"

namespace plumb::PLUMB_GPU_VENDOR {

// Offsets, in elements, of the rows (last axes) of a tensor with up to three outer axes.
struct Rows {
  int64_t count = 1;
  Divisor inner, innermost;  // extents of the last two outer axes
  int64_t stride0 = 0, stride1 = 0, stride2 = 0;

  bool evenly_spaced() const { return count == innermost.value(); }

  __host__ __device__ int64_t offset(int64_t row) const {
    if (count == innermost.value()) return row * stride2;
    const Division last = divide(row, innermost), first = divide(last.quotient, inner);
    return first.quotient * stride0 + first.remainder * stride1 + last.remainder * stride2;
  }
};

// The outer axes of a tensor, dense ones merged.
struct OuterAxes {
  int64_t extents[kMaxRank] = {}, strides[kMaxRank] = {};
  int axes = 0;
  int64_t count;  // rows

  explicit OuterAxes(const Tensor& t, int row_axes = 1) : count(t.numel() > 0 ? 1 : 0) {
    for (int i = 0; i + row_axes < t.rank(); ++i) {
      count *= t.dim(i);
      if (t.dim(i) == 1) continue;
      if (axes > 0 && strides[axes - 1] == t.stride(i) * t.dim(i)) {
        extents[axes - 1] *= t.dim(i);
        strides[axes - 1] = t.stride(i);
      } else {
        extents[axes] = t.dim(i);
        strides[axes++] = t.stride(i);
      }
    }
  }
};

inline constexpr int kMostStrides = 3;
inline bool has_few_strides(const Tensor& t) { return OuterAxes(t).axes <= kMostStrides; }

// Throws Unsupported when more than three outer axes remain. A row is the last axis, or the last
// `row_axes` ones where they are dense.
inline Rows rows_of(const char* op, const Tensor& t, int row_axes = 1) {
  const OuterAxes outer(t, row_axes);
  const auto& [extents, strides, axes, count] = outer;
  require<Unsupported>(axes <= kMostStrides, op, "a tensor of shape ", t.shape(), " with ", axes,
                       " separate outer strides; at most 3 are implemented: make it contiguous");
  Rows out;
  out.innermost = Divisor(axes > 0 ? extents[axes - 1] : 1);
  out.stride2 = axes > 0 ? strides[axes - 1] : 0;
  out.inner = Divisor(axes > 1 ? extents[axes - 2] : 1);
  out.stride1 = axes > 1 ? strides[axes - 2] : 0;
  out.stride0 = axes > 2 ? strides[axes - 3] : 0;
  out.count = axes > 1 ? divisible(op, count) : count;
  return out;
}

// Whether every row of the tensor starts at a multiple of so many bytes and has a whole number of
// them.
inline bool rows_are_multiples_of(int64_t bytes, const Tensor& t) {
  if (reinterpret_cast<uintptr_t>(t.raw()) % static_cast<uintptr_t>(bytes) != 0) return false;
  const int64_t size = size_of(t.dtype());
  if (t.dim(-1) * size % bytes != 0 || t.stride(-1) == 0) return false;
  for (int i = 0; i + 1 < t.rank(); ++i) {
    if (t.dim(i) != 1 && t.stride(i) * size % bytes != 0) return false;
  }
  return true;
}

// Whether 16-byte accesses read every row.
inline bool rows_are_vectors(const Tensor& t) { return rows_are_multiples_of(16, t); }

inline bool equal_layout(const Tensor& a, const Tensor& b) {
  bool equal = a.dtype() == b.dtype() && a.shape() == b.shape();
  for (int i = 0; equal && i < a.rank(); ++i) equal = a.stride(i) == b.stride(i);
  return equal;
}

// How many of the last axes are dense in both tensors, which have equal shapes.
inline int dense_axes(const Tensor& a, const Tensor& b) {
  int axes = 1;
  int64_t elements = a.dim(-1);
  const auto dense = [&](const Tensor& t) {
    return t.dim(-axes - 1) == 1 || t.stride(-axes - 1) == elements;
  };
  while (axes < a.rank() && dense(a) && dense(b)) elements *= a.dim(-++axes);
  return axes;
}

// A grid of one block per row; throws Unsupported for more rows than a grid may have.
inline unsigned grid_of_rows(const char* op, int64_t rows) {
  constexpr int64_t kMost = int64_t{1} << 30;
  require<Unsupported>(rows <= kMost, op, rows, " rows in one call, at most ", kMost,
                       " are implemented: split it");
  return static_cast<unsigned>(rows);
}

// Blocks of a grid-stride loop over `items` of `per_block` each; any remainder is looped over.
inline unsigned grid_for(int64_t items, int64_t per_block) {
  constexpr int64_t kMost = int64_t{1} << 30;  // grid.x may have 2^31 - 1 blocks
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMost ? blocks : kMost);
}

// Calls f with a value of the storage type; throws Unsupported for other dtypes.
template <class F>
void with_storage(const char* op, DType dtype, F f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(BFloat16{});
    case DType::f16: return f(Float16{});
    default:
      throw Unsupported(text('[', op, "] ", name_of(dtype), " on a GPU; known: f32, f16, bf16"));
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR
