#include "kernels/core/dtype.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr std::array<DTypeInfo, kDTypes> kTable = {{
    {DType::f64, "f64", 8, true, 53, -1022, std::numeric_limits<double>::max()},
    {DType::f32, "f32", 4, true, 24, -126, std::numeric_limits<float>::max()},
    {DType::f16, "f16", 2, true, 11, -14, 65504.0},
    {DType::bf16, "bf16", 2, true, 8, -126, 0x1.fep127},
    {DType::f8_e4m3, "f8_e4m3", 1, true, 4, -6, 448.0},
    {DType::f8_e5m2, "f8_e5m2", 1, true, 3, -14, 57344.0},
    {DType::i8, "i8", 1, false, 0, 0, 127.0},
    {DType::u8, "u8", 1, false, 0, 0, 255.0},
    {DType::i32, "i32", 4, false, 0, 0, 2147483647.0},
    {DType::u32, "u32", 4, false, 0, 0, 4294967295.0},
    {DType::i64, "i64", 8, false, 0, 0, 0x1p63},
    {DType::boolean, "bool", 1, false, 0, 0, 1.0},
}};

struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

constexpr SmallFloat small_float(DType dtype) {
  switch (dtype) {
    case DType::f16: return {5, 10, true};
    case DType::bf16: return {8, 7, true};
    case DType::f8_e5m2: return {5, 2, true};
    default: return {4, 3, false};  // e4m3: exponent 15 is used for numbers, only 0x7f is NaN
  }
}

double decode(SmallFloat f, uint32_t bits) {
  const uint32_t mantissa_mask = (1u << f.mantissa_bits) - 1;
  const uint32_t exponent_mask = (1u << f.exponent_bits) - 1;
  const uint32_t mantissa = bits & mantissa_mask;
  const uint32_t exponent = (bits >> f.mantissa_bits) & exponent_mask;
  const double sign = (bits >> (f.mantissa_bits + f.exponent_bits)) ? -1.0 : 1.0;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  if (f.has_infinity && exponent == exponent_mask) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (!f.has_infinity && exponent == exponent_mask && mantissa == mantissa_mask) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + mantissa_mask + 1,
                           static_cast<int>(exponent) - bias - f.mantissa_bits);
}

// x must already be a value of the format (see round_to), or NaN or infinity.
uint32_t encode(SmallFloat f, double x) {
  const uint32_t sign = std::signbit(x) ? 1u << (f.mantissa_bits + f.exponent_bits) : 0u;
  const uint32_t exponent_mask = (1u << f.exponent_bits) - 1;
  const uint32_t mantissa_mask = (1u << f.mantissa_bits) - 1;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  if (std::isnan(x)) {
    const uint32_t payload = f.has_infinity ? 1u << (f.mantissa_bits - 1) : mantissa_mask;
    return sign | (exponent_mask << f.mantissa_bits) | payload;
  }
  if (std::isinf(x)) return sign | (exponent_mask << f.mantissa_bits);
  if (x == 0) return sign;
  int exponent = 0;
  std::frexp(std::fabs(x), &exponent);  // |x| = m 2^exponent with m in [0.5, 1)
  const int biased = exponent - 1 + bias;
  if (biased <= 0) {
    return sign | static_cast<uint32_t>(std::ldexp(std::fabs(x), bias - 1 + f.mantissa_bits));
  }
  const auto significand =
      static_cast<uint32_t>(std::ldexp(std::fabs(x), f.mantissa_bits - (exponent - 1)));
  return sign | (static_cast<uint32_t>(biased) << f.mantissa_bits) | (significand & mantissa_mask);
}

template <class T>
double load_as(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return static_cast<double>(value);
}

template <class T>
void store_as(void* address, double x) {
  const T value = static_cast<T>(x);
  std::memcpy(address, &value, sizeof(T));
}

}  // namespace

const DTypeInfo& info(DType dtype) { return kTable[static_cast<size_t>(dtype)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -info(dtype).significand_bits); }

namespace {

// The spacing around x is 2 to this.
int quantum_of(const DTypeInfo& format, double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const int lowest = format.min_exponent + 1;  // below it the spacing no longer shrinks
  if (x == 0) exponent = lowest;               // frexp says 0, as it does of 1/2
  return (exponent > lowest ? exponent : lowest) - format.significand_bits;
}

}  // namespace

namespace {

// Rounds a double whose result is normal and cannot overflow on its bits, to nearest even; false
// for others.
bool round_bits(const DTypeInfo& format, double x, double& rounded) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
  if (exponent < format.min_exponent || !(std::fabs(x) < format.max / 2)) return false;
  const int dropped = 53 - format.significand_bits;
  const uint64_t odd = (bits >> dropped) & 1;
  const uint64_t up = bits + (uint64_t{1} << (dropped - 1)) - 1 + odd;
  rounded = std::bit_cast<double>(up >> dropped << dropped);
  return true;
}

}  // namespace

double spacing(DType dtype, double x) { return std::ldexp(1.0, quantum_of(info(dtype), x)); }

double round_to(DType dtype, double x) {
  if (dtype == DType::f64 || std::isnan(x) || x == 0) return x;
  if (std::isinf(x)) return dtype == DType::f8_e4m3 ? std::nan("") : x;
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(x));
  const DTypeInfo& format = info(dtype);
  if (double quick = 0; round_bits(format, x, quick)) return quick;
  const int quantum = quantum_of(format, x);
  // nearbyint rounds to nearest even under the default mode, and both scalings are exact.
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -quantum)), quantum);
  if (std::fabs(rounded) <= format.max) return rounded;
  return dtype == DType::f8_e4m3 ? std::numeric_limits<double>::quiet_NaN()
                                 : std::copysign(std::numeric_limits<double>::infinity(), x);
}

double load(DType dtype, const void* address) {
  uint16_t half = 0;
  switch (dtype) {
    case DType::f64: return load_as<double>(address);
    case DType::f32: return load_as<float>(address);
    case DType::bf16: std::memcpy(&half, address, 2); return bf16_to_f32(half);
    case DType::f16: std::memcpy(&half, address, 2); return f16_to_f32(half);
    case DType::f8_e4m3:
    case DType::f8_e5m2: return decode(small_float(dtype), *static_cast<const uint8_t*>(address));
    case DType::i8: return load_as<int8_t>(address);
    case DType::u8: return load_as<uint8_t>(address);
    case DType::i32: return load_as<int32_t>(address);
    case DType::u32: return load_as<uint32_t>(address);
    case DType::i64: return load_as<int64_t>(address);
    case DType::boolean: return *static_cast<const uint8_t*>(address) != 0;
  }
  return 0;
}

void store(DType dtype, void* address, double x) {
  switch (dtype) {
    case DType::f64: return store_as<double>(address, x);
    case DType::f32: return store_as<float>(address, x);
    case DType::bf16:
    case DType::f16: {
      double quick = 0;  // then exact in float32, too
      if (!round_bits(info(dtype), x, quick)) {
        return store_as<uint16_t>(address, encode(small_float(dtype), round_to(dtype, x)));
      }
      const auto value = static_cast<float>(quick);
      const uint16_t bits = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
      return std::memcpy(address, &bits, sizeof bits), void();
    }
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return store_as<uint8_t>(address, encode(small_float(dtype), round_to(dtype, x)));
    case DType::i8: return store_as<int8_t>(address, x);
    case DType::u8: return store_as<uint8_t>(address, x);
    case DType::i32: return store_as<int32_t>(address, x);
    case DType::u32: return store_as<uint32_t>(address, x);
    case DType::i64: return store_as<int64_t>(address, x);
    case DType::boolean: return store_as<uint8_t>(address, x != 0);
  }
}

namespace {

template <class T, class Convert>
void load_each(const void* from, int64_t count, double* to, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(from) + i * int64_t{sizeof(T)}, sizeof(T));
    to[i] = convert(value);
  }
}

}  // namespace

void load_all(DType dtype, const void* from, int64_t count, double* to) {
  const auto same = [](auto value) { return static_cast<double>(value); };
  switch (dtype) {
    case DType::f64: return load_each<double>(from, count, to, same);
    case DType::f32: return load_each<float>(from, count, to, same);
    case DType::bf16: return load_each<uint16_t>(from, count, to, bf16_to_f32);
    case DType::f16: return load_each<uint16_t>(from, count, to, f16_to_f32);
    default: {
      const auto* bytes = static_cast<const char*>(from);
      for (int64_t i = 0; i < count; ++i) to[i] = load(dtype, bytes + i * size_of(dtype));
    }
  }
}

void store_all(DType dtype, void* to, int64_t count, const double* from) {
  auto* bytes = static_cast<char*>(to);
  if (dtype == DType::f64) {
    std::memcpy(bytes, from, static_cast<size_t>(count) * sizeof(double));
    return;
  }
  if (dtype == DType::f32) {
    for (int64_t i = 0; i < count; ++i) store_as<float>(bytes + i * 4, from[i]);
    return;
  }
  const int64_t size = size_of(dtype);
  for (int64_t i = 0; i < count; ++i) store(dtype, bytes + i * size, from[i]);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 2^16
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the result's last bit with f16's, rounding to nearest even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace plumb
