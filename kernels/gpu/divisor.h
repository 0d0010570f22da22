// Divisor: division by a number that is fixed for a launch, as one multiplication (Granlund and
// Montgomery 1994, section 4). GPUs have no integer division: 64-bit ones cost about 100
// instructions, more than a memory-bound kernel has to spare.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct Division {
  int64_t quotient, remainder;
};

class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(divisor < 1 ? 1 : divisor) {
    if (divisor_ > INT32_MAX) {
      multiplier_ = 0;
      return;
    }
    while ((int64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t power = uint64_t{1} << shift_, d = static_cast<uint64_t>(divisor_);
    multiplier_ = static_cast<uint32_t>(((power - d) << 32) / d + 1);
  }

  __host__ __device__ int64_t value() const { return divisor_; }

 private:
  friend __host__ __device__ Division divide(int64_t n, const Divisor& by);
  int64_t divisor_ = 1;
  uint32_t multiplier_ = 1;  // 0: the divisor needs more than 31 bits
  int shift_ = 0;
};

// n / by and what remains, of an n >= 0. Exact for all; slow where either needs more than 31 bits.
__host__ __device__ inline Division divide(int64_t n, const Divisor& by) {
  if (n > INT32_MAX || by.multiplier_ == 0) {
    const int64_t quotient = n / by.divisor_;
    return {quotient, n - quotient * by.divisor_};
  }
  const uint32_t small = static_cast<uint32_t>(n);
  const uint32_t high = static_cast<uint32_t>(uint64_t{small} * by.multiplier_ >> 32);
  const uint32_t quotient = (high + small) >> by.shift_;
  return {quotient, small - quotient * static_cast<uint32_t>(by.divisor_)};
}

}  // namespace plumb::PLUMB_GPU_VENDOR
