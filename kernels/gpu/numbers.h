// Elements of any dtype as numbers, in kernels: kernels/ops/casts.h.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops/casts.h"

namespace plumb::PLUMB_GPU_VENDOR {

__device__ inline float float_of_e4m3(uint8_t code) {
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return __builtin_bit_cast(float, sign | 0x7fc00000u);
  // 2^120 moves the exponent from this format's bias to f32's, subnormals included.
  const float scaled = __builtin_bit_cast(float, magnitude << 20) * 0x1p120f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled));
}

// x as a format of one byte with so many bits behind the point, whose numbers below 2^least are
// subnormal: to nearest even; above `most`, of NaN too, `beyond` and `nan`.
__device__ inline uint8_t byte_of(float x, int mantissa, int least, uint32_t most, uint32_t beyond,
                                  uint32_t nan) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | nan);
  uint32_t code = 0;
  if (magnitude < static_cast<uint32_t>(127 + least) << 23) {  // the float adder rounds
    const uint32_t quantum = static_cast<uint32_t>(127 + least - mantissa + 23) << 23;
    const float aligned = __builtin_bit_cast(float, magnitude) + __builtin_bit_cast(float, quantum);
    code = __builtin_bit_cast(uint32_t, aligned) - quantum;
  } else {
    const int dropped = 23 - mantissa;
    const uint32_t half = (uint32_t{1} << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
    code = ((magnitude + half) >> dropped) - (static_cast<uint32_t>(126 + least) << mantissa);
  }
  return static_cast<uint8_t>(sign | (code > most ? beyond : code));
}

// Element `at` of those at p.
__device__ inline Number load_number(DType dtype, const void* p, int64_t at) {
  const auto real = [](double x) { return Number{false, 0, x}; };
  const auto whole = [](int64_t i) { return Number{true, i, 0}; };
  switch (dtype) {
    case DType::f64: return real(static_cast<const double*>(p)[at]);
    case DType::f32: return real(static_cast<const float*>(p)[at]);
    case DType::f16: return real(to_float(static_cast<const Float16*>(p)[at]));
    case DType::bf16: return real(to_float(static_cast<const BFloat16*>(p)[at]));
    case DType::f8_e4m3: return real(float_of_e4m3(static_cast<const uint8_t*>(p)[at]));
    case DType::f8_e5m2: {
      const uint8_t code = static_cast<const uint8_t*>(p)[at];  // the upper half of an f16
      return real(to_float(Float16{static_cast<uint16_t>(code << 8)}));
    }
    case DType::i8: return whole(static_cast<const int8_t*>(p)[at]);
    case DType::u8: return whole(static_cast<const uint8_t*>(p)[at]);
    case DType::i32: return whole(static_cast<const int32_t*>(p)[at]);
    case DType::u32: return whole(static_cast<const uint32_t*>(p)[at]);
    case DType::i64: return whole(static_cast<const int64_t*>(p)[at]);
    case DType::boolean: return whole(static_cast<const uint8_t*>(p)[at] != 0);
  }
  return {};
}

__device__ inline void store_number(DType dtype, void* p, int64_t at, const Number& value) {
  const float narrow = casts::narrow(value);
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(p)[at] = value.whole ? static_cast<double>(value.i) : value.x;
      return;
    case DType::f32: static_cast<float*>(p)[at] = narrow; return;
    case DType::f16: static_cast<Float16*>(p)[at] = from_float<Float16>(narrow); return;
    case DType::bf16: static_cast<BFloat16*>(p)[at] = from_float<BFloat16>(narrow); return;
    case DType::f8_e4m3:
      static_cast<uint8_t*>(p)[at] = byte_of(narrow, 3, -6, 0x7e, 0x7f, 0x7f);
      return;
    case DType::f8_e5m2:
      static_cast<uint8_t*>(p)[at] = byte_of(narrow, 2, -14, 0x7b, 0x7c, 0x7e);
      return;
    case DType::i64: static_cast<int64_t*>(p)[at] = casts::whole(dtype, value); return;
    case DType::i32:
      static_cast<int32_t*>(p)[at] = static_cast<int32_t>(casts::whole(dtype, value));
      return;
    case DType::u32:
      static_cast<uint32_t*>(p)[at] = static_cast<uint32_t>(casts::whole(dtype, value));
      return;
    default: static_cast<uint8_t*>(p)[at] = static_cast<uint8_t>(casts::whole(dtype, value));
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR
