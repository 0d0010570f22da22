// Divisor: division by a number that is fixed for a launch, as one multiplication (Granlund and
// Montgomery 1994, section 4). GPUs have no integer division; in 64 bits it costs about 100
// instructions, more than a memory-bound kernel has to spare.
#pragma once

#include "kernels/core/error.h"
#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct Division {
  int64_t quotient, remainder;
};

class Divisor {
 public:
  Divisor() = default;
  // Throws Unsupported for more than 2^31 - 1; 0 becomes 1.
  explicit Divisor(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor < 1 ? 1 : divisor)) {
    require<Unsupported>(divisor <= INT32_MAX, "divisor", divisor,
                         " elements along an axis, at most ", INT32_MAX, " are implemented");
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t power = uint64_t{1} << shift_;
    multiplier_ = static_cast<uint32_t>(((power - divisor_) << 32) / divisor_ + 1);
  }

  __host__ __device__ int64_t value() const { return divisor_; }

 private:
  friend __host__ __device__ Division divide(int64_t n, const Divisor& by);
  uint32_t divisor_ = 1;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

// n / by and what remains; 0 <= n < 2^31.
__host__ __device__ inline Division divide(int64_t n, const Divisor& by) {
  const uint32_t small = static_cast<uint32_t>(n);
  const uint32_t high = static_cast<uint32_t>(uint64_t{small} * by.multiplier_ >> 32);
  const uint32_t quotient = (high + small) >> by.shift_;
  return {quotient, small - quotient * by.divisor_};
}

// A number of things that a kernel divides; throws Unsupported when there are too many.
inline int64_t divisible(const char* op, int64_t count) {
  require<Unsupported>(count <= INT32_MAX, op, count, " pieces of work in one call, at most ",
                       INT32_MAX, " are implemented: split it");
  return count;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
