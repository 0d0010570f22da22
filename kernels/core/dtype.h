// Element types: one table of their properties, and conversions that round to nearest even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace plumb {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i8,
  u8,
  i32,
  u32,
  i64,
  boolean
};
inline constexpr int kDTypes = 12;

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // as written in recordings: "bf16", "bool"
  int size;               // bytes
  bool floating;
  int significand_bits;  // including the implicit one; 0 for integers
  int min_exponent;      // of the smallest normal number, 2^min_exponent
  double max;            // largest finite value
};

const DTypeInfo& info(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

inline int64_t size_of(DType dtype) { return info(dtype).size; }
inline std::string_view name_of(DType dtype) { return info(dtype).name; }
inline bool is_floating(DType dtype) { return info(dtype).floating; }

// Unit roundoff u = 2^-p of a floating type with p significand bits: half an ulp of 1.
double unit_roundoff(DType dtype);

// The distance of neighbouring values of a floating type around x; x is finite.
double spacing(DType dtype, double x);

// x rounded to the nearest value of a floating type, ties to even, in one step (never through an
// intermediate type). Overflow gives infinity (e4m3, which has none, gives NaN); NaN stays NaN.
double round_to(DType dtype, double x);

// One element at `address` as a double (exact but for i64 beyond 2^53; bool gives 0 or 1).
double load(DType dtype, const void* address);
// The element nearest to x, written to `address`; integers truncate toward zero.
void store(DType dtype, void* address, double x);

// The same for `count` consecutive elements, with one dispatch on the dtype.
void load_all(DType dtype, const void* from, int64_t count, double* to);
void store_all(DType dtype, void* to, int64_t count, const double* from);

// bfloat16: the upper half of a float32.
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

// IEEE binary16.
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float x);

// Storage types for templates.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

}  // namespace plumb
