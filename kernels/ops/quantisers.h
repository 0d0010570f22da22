// How quantize makes scales and codes, in float32: read by every device (kernels/ops/ops.h).
#pragma once

#include <cstdint>

#include "kernels/ops/op_params.h"

namespace plumb::quantisers {

// Least, largest, and largest magnitude of some values and 0.
struct Extremes {
  float low = 0, high = 0;

  constexpr void take(float x) {  // a NaN is neither
    if (x < low) low = x;
    if (x > high) high = x;
  }
  constexpr float magnitude() const { return -low > high ? -low : high; }
};

struct Grid {
  ScaleRule rule;
  bool whole;          // codes are whole numbers
  float lowest, most;  // of them
  int most_exponent;   // of the largest float code
  float divisor;
};

constexpr Grid grid_of(DType codes, ScaleRule rule, float divisor) {
  switch (codes) {
    case DType::f8_e4m3: return {rule, false, -448, 448, 8, divisor};
    case DType::f8_e5m2: return {rule, false, -57344, 57344, 15, divisor};
    case DType::u8: return {rule, true, 0, 255, 0, divisor};
    default: return {rule, true, -128, 127, 0, divisor};
  }
}

// Before it is rounded to its dtype.
constexpr float scale_of(const Grid& grid, const Extremes& values) {
  const bool asymmetric = grid.rule == ScaleRule::asymmetric;
  return (asymmetric ? values.high - values.low : values.magnitude()) / grid.divisor;
}

// e + 127 of a shared exponent, from 0 to 254.
constexpr int exponent_of(const Grid& grid, const Extremes& values) {
  const float amax = values.magnitude();
  const auto bits = __builtin_bit_cast(uint32_t, amax);
  int exponent = static_cast<int>(bits >> 23) - 127;  // floor(log2(amax)), but of subnormals
  if (bits >> 23 == 0) {
    const auto scaled = __builtin_bit_cast(uint32_t, amax * 0x1p24f);
    exponent = static_cast<int>(scaled >> 23) - 127 - 24;
  }
  const int code = exponent - grid.most_exponent + 127;
  return code < 0 || bits == 0 ? 0 : code > 254 ? 254 : code;
}

// To the nearest whole number, of two the even one; what is beyond the grid is its end.
constexpr float within(const Grid& grid, float v) {
  return v < grid.lowest ? grid.lowest : v > grid.most ? grid.most : v;
}
constexpr float nearest(const Grid& grid, float v) {
  constexpr float kShift = 12582912.0f;  // 1.5 2^23: then the last bit is a whole one
  const float inside = within(grid, v);
  return (inside + kShift) - kShift;
}

constexpr float zero_of(const Grid& grid, const Extremes& values, float scale) {
  const float quotient = scale != 0 ? values.low / scale : 0.0f;
  return nearest(grid, quotient == quotient ? grid.lowest - quotient : grid.lowest);
}

// The code, of floats before it is rounded to their format. A value is divided by its scale.
constexpr float code_of(const Grid& grid, float x, float scale, float zero) {
  if (!grid.whole) {
    if (scale == 0) return x == x ? 0.0f : x;
    return within(grid, x / scale);  // NaN stays
  }
  const float v = scale != 0 ? x / scale : 0.0f;
  if (v != v) return zero;
  const float shifted = grid.rule == ScaleRule::asymmetric
                            ? nearest({grid.rule, true, -1024, 1024, 0, 1}, v) + zero
                            : nearest(grid, v);
  return within(grid, shifted);
}

// 2^e of the stored exponent; a value over it is exact, or rounded where it is subnormal.
constexpr float power_of(int stored) {
  return __builtin_bit_cast(float, stored == 0 ? 0x00400000u : static_cast<uint32_t>(stored) << 23);
}

}  // namespace plumb::quantisers
