// Divisor: division by a number that is fixed for a launch, as one multiplication (Granlund and
// Montgomery 1994, section 4). GPUs have no integer division: 64-bit ones cost about 100
// instructions, more than a memory-bound kernel has to spare.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(divisor < 1 ? 1 : divisor) {
    while ((int64_t{1} << shift_) < divisor_ && shift_ < 31) ++shift_;
    const uint64_t power = uint64_t{1} << shift_, d = static_cast<uint64_t>(divisor_);
    if (d <= power) multiplier_ = static_cast<uint32_t>(((power - d) << 32) / d + 1);
  }

  __host__ __device__ int64_t value() const { return divisor_; }
  // n / divisor of an n >= 0. Exact for all; slow where either needs more than 31 bits.
  __host__ __device__ int64_t quotient(int64_t n) const {
    if (n > INT32_MAX || divisor_ > INT32_MAX) return n / divisor_;
    const uint32_t small = static_cast<uint32_t>(n);
    const uint32_t high = static_cast<uint32_t>(uint64_t{small} * multiplier_ >> 32);
    return (high + small) >> shift_;
  }

 private:
  int64_t divisor_ = 1;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

struct Division {
  int64_t quotient, remainder;
};
__host__ __device__ inline Division divide(int64_t n, const Divisor& by) {
  const int64_t quotient = by.quotient(n);
  return {quotient, n - quotient * by.value()};
}

}  // namespace plumb::PLUMB_GPU_VENDOR
