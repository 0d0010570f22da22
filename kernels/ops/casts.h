// What cast() makes of numbers that are no floats, or are to be none: read by every device.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace plumb {

// An element of any dtype: a whole number, or a float64, both exactly.
struct Number {
  bool whole;
  int64_t i;
  double x;
};

namespace casts {

inline constexpr int64_t kLowest64 = INT64_MIN;

constexpr int64_t truncated64(double x) {
  return x >= -0x1p63 && x < 0x1p63 ? static_cast<int64_t>(x) : kLowest64;
}
constexpr int64_t truncated32(double x) {
  return x > -0x1p31 - 1 && x < 0x1p31 ? static_cast<int64_t>(x) : INT32_MIN;
}

// As a whole number of this dtype, in [lowest, largest] of it.
constexpr int64_t whole(DType to, const Number& from) {
  switch (to) {
    case DType::i32:
      return from.whole ? static_cast<int32_t>(static_cast<uint64_t>(from.i)) : truncated32(from.x);
    case DType::u32:
      return static_cast<uint32_t>(
          static_cast<uint64_t>(from.whole ? from.i : truncated64(from.x)));
    case DType::i8:
      return static_cast<int8_t>(static_cast<uint64_t>(from.whole ? from.i : truncated32(from.x)));
    case DType::u8:
      return static_cast<uint8_t>(static_cast<uint64_t>(from.whole ? from.i : truncated64(from.x)));
    case DType::boolean: return from.whole ? from.i != 0 : !(from.x == 0);
    default: return from.whole ? from.i : truncated64(from.x);
  }
}

// Of a float that is narrower than f64: rounded to f32, exact of what is no more than that.
constexpr float narrow(const Number& from) {
  return from.whole ? static_cast<float>(from.i) : static_cast<float>(from.x);
}

}  // namespace casts

// One element in the host's memory.
Number load_number(DType dtype, const void* address);
void store_number(DType dtype, void* address, const Number& value);

}  // namespace plumb
