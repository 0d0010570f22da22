#include "kernels/core/arena.h"

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb {
namespace {
constexpr int64_t kSmallestChunk = int64_t{1} << 20;
}  // namespace

Tensor Arena::take_apart(DType dtype, const Shape& shape) {
  apart_.push_back(device_.allocate(dtype, shape));
  device_.fill(apart_.back(), *poison_);
  return apart_.back();
}

Tensor Arena::take(DType dtype, const Shape& shape) {
  if (poison_ && device_.checks_bounds()) return take_apart(dtype, shape);
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "scratch", shape,
          " is larger than 2^63 bytes");
  require(bytes <= INT64_MAX - kTensorAlignment, "scratch", bytes, " bytes");
  const int64_t padded = (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  while (chunk_ < chunks_.size() && chunks_[chunk_].bytes() - used_ < padded) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const int64_t twice = chunks_.empty() ? kSmallestChunk : 2 * chunks_.back().bytes();
    chunks_.push_back(device_.allocate(DType::u8, {std::max(twice, padded)}));
  }
  Tensor& chunk = chunks_[chunk_];
  if (poison_ && bytes > 0) device_.fill(chunk.slice(0, used_, used_ + bytes), *poison_);
  Tensor out = chunk.slice(0, used_, used_ + bytes).reinterpret(dtype, shape);
  used_ += padded;
  return out;
}

}  // namespace plumb
