// Ids in device memory, and where elements of strided tensors are.
#pragma once

#include "kernels/gpu/divisor.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct Ids {
  const void* data = nullptr;
  DType dtype = DType::i64;

  Ids() = default;
  explicit Ids(const Tensor& t) : data(t.raw()), dtype(t.dtype()) {}

  __device__ int64_t at(int64_t offset) const {
    switch (dtype) {
      case DType::i32: return static_cast<const int32_t*>(data)[offset];
      case DType::u32: return static_cast<const uint32_t*>(data)[offset];
      case DType::u8: return static_cast<const uint8_t*>(data)[offset];
      default: return static_cast<const int64_t*>(data)[offset];
    }
  }
};

// Of many unknown ids the first that is noted is reported.
__device__ inline void note_unknown(IdError* error, OpId op, int64_t id, int64_t place,
                                    int64_t extent) {
  if (atomic_add(&error->count, 1) != 0) return;
  error->op = op;
  error->id = id;
  error->place = place;
  error->extent = extent;
}

// An element's place along each axis of a shape, from its number in row-major order.
struct Axes8 {
  int rank = 0;
  Divisor extents[kMaxRank];

  explicit Axes8(const Shape& shape) : rank(shape.rank()) {
    for (int i = 0; i < rank; ++i) extents[i] = Divisor(shape[i]);
  }
  // Calls visit(axis, place), the last axis first.
  template <class Visit>
  __device__ void each(int64_t number, Visit visit) const {
    for (int i = rank - 1; i >= 0; --i) {
      const Division at = divide(number, extents[i]);
      visit(i, at.remainder);
      number = at.quotient;
    }
  }
};
struct Strides {
  int64_t at[kMaxRank] = {};
  explicit Strides(const Tensor& t) {
    for (int i = 0; i < t.rank(); ++i) at[i] = t.stride(i);
  }
};

}  // namespace plumb::PLUMB_GPU_VENDOR
