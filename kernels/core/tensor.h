// Tensor: a handle on shared storage. Copying it never copies data.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb {

inline constexpr int kMaxRank = 8;

// Up to eight non-negative 64-bit extents, outermost first as in torch. Negative axes count from
// the end.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  explicit Shape(const std::vector<int64_t>& extents);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[index(axis)]; }
  void set(int axis, int64_t extent) { extents_[index(axis)] = extent; }
  // Product of the extents; throws UsageError when it exceeds 2^63 - 1.
  int64_t numel() const;
  bool operator==(const Shape& other) const;

 private:
  size_t index(int axis) const {
    const int at = axis < 0 ? axis + rank_ : axis;
    if (at < 0 || at >= rank_) refuse(axis);
    return static_cast<size_t>(at);
  }
  [[noreturn]] void refuse(int axis) const;
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [2, 11, 32]

// Bytes; tensors on the host and pieces of scratch memory begin at a multiple of it: a cache line.
inline constexpr int64_t kTensorAlignment = 64;

// Bytes on some device; freed when the last tensor lets go.
class Storage {
 public:
  Storage(void* data, int64_t bytes, const void* owner) : data(data), bytes(bytes), owner(owner) {}
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* const data;
  const int64_t bytes;
  const void* const owner;  // the Device that allocated it; null for plain host memory
};

// Host memory, 64-byte aligned, contents undefined.
std::shared_ptr<Storage> host_storage(int64_t bytes, const void* owner = nullptr);

class Tensor {
 public:
  Tensor() = default;  // undefined: an absent optional argument
  // Contiguous, starting `byte_offset` into the storage; throws UsageError when it does not fit.
  Tensor(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape,
         int64_t byte_offset = 0);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t stride(int axis) const { return strides_[axis]; }  // in elements
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype_); }
  bool contiguous() const;
  const Storage& storage() const { return *storage_; }

  void* raw() const { return static_cast<char*>(storage_->data) + byte_offset_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(raw());
  }

  // The same elements under another shape; throws UsageError when not contiguous or the counts
  // differ.
  Tensor view(const Shape& shape) const;
  // The same bytes as another dtype and shape of equal size; throws UsageError otherwise.
  Tensor reinterpret(DType dtype, const Shape& shape) const;
  // Elements [begin, end) along an axis.
  Tensor slice(int axis, int64_t begin, int64_t end) const;
  // Elements first, first + step, ... along an axis that is not the last.
  Tensor every(int axis, int64_t first, int64_t step) const;
  // An axis as two, the inner one of the given extent; any strides.
  Tensor split(int axis, int64_t inner) const;
  // An axis of extent 1 more, in front of this one.
  Tensor with_axis(int axis) const;
  // Axes exchanged. The last axis must stay last (ops rely on it being contiguous).
  Tensor transpose(int a, int b) const;
  // A leading axis of extent 1 repeated without copying (stride 0).
  Tensor expand(int axis, int64_t extent) const;
  // This shape, axes aligned from the right, those of extent 1 or missing repeated without copying:
  // the last one, too, whose stride is 0 then.
  Tensor broadcast(const Shape& shape) const;
  // The same view of other bytes: of `whole`, which is dense and as long as this storage, or
  // longer.
  Tensor in(const Tensor& whole) const;

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  Shape shape_;
  Shape strides_;
  int64_t byte_offset_ = 0;
};

// A contiguous host tensor with undefined contents.
Tensor host_tensor(DType dtype, const Shape& shape);

// Calls visit(offset_in_elements) for the start of every row (all axes but the last), in order.
template <class Visit>
void for_each_row(const Tensor& t, Visit visit) {
  const int outer = t.rank() - 1;
  if (t.numel() == 0) return;
  if (outer <= 0) return visit(int64_t{0});
  std::array<int64_t, kMaxRank> at{};
  int64_t offset = 0;
  for (;;) {
    visit(offset);
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      offset += t.stride(axis);
      if (++at[axis] < t.dim(axis)) break;
      offset -= at[axis] * t.stride(axis);
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace plumb
