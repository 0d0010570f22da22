#include "kernels/core/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/catch.h"

namespace plumb {
namespace {

// An independent reference: the value of a small float from its fields, by exact powers of two.
struct Fields {
  DType dtype;
  int exponent_bits, mantissa_bits;
  bool has_infinity;
};

constexpr Fields kFormats[] = {{DType::f16, 5, 10, true},
                               {DType::bf16, 8, 7, true},
                               {DType::f8_e5m2, 5, 2, true},
                               {DType::f8_e4m3, 4, 3, false}};

double value_of(const Fields& f, uint32_t code) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint32_t mantissa = code % (1u << f.mantissa_bits);
  const uint32_t exponent = (code >> f.mantissa_bits) % (1u << f.exponent_bits);
  const bool negative = code >> (f.exponent_bits + f.mantissa_bits);
  const bool last = exponent == (1u << f.exponent_bits) - 1;
  double value = 0;
  if (last && f.has_infinity) {
    value = mantissa ? std::nan("") : std::numeric_limits<double>::infinity();
  } else if (last && mantissa == (1u << f.mantissa_bits) - 1) {
    value = std::nan("");
  } else {
    const double leading = exponent ? 1.0 : 0.0;
    const int power = exponent ? static_cast<int>(exponent) - bias : 1 - bias;
    value = std::pow(2.0, power) * (leading + mantissa / std::pow(2.0, f.mantissa_bits));
  }
  return negative ? -value : value;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Rounding of float32 bits to 16 bits with integers only: cut, look at what was cut off.
uint16_t integer_round(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | infinity | 1u);  // any NaN
  if (magnitude == 0x7f800000) return static_cast<uint16_t>(sign | infinity);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint64_t significand = magnitude & 0x7fffff;
  if (magnitude >> 23) significand |= 0x800000;
  else exponent = -126;
  // value = significand 2^(exponent - 23), wanted as count 2^(quantum)
  const int lowest = 1 - bias;
  const int quantum = (exponent > lowest ? exponent : lowest) - mantissa_bits;
  const int drop = quantum - (exponent - 23);
  uint64_t count = 0;
  if (drop <= 0) {
    count = significand << -drop;
  } else if (drop < 40) {
    const uint64_t half = uint64_t{1} << (drop - 1), rest = significand & (2 * half - 1);
    count = significand >> drop;
    if (rest > half || (rest == half && (count & 1))) ++count;
  }
  const uint64_t code = exponent > lowest
                            ? (static_cast<uint64_t>(exponent - lowest) << mantissa_bits) + count
                            : count;  // carries run into the exponent by themselves
  return static_cast<uint16_t>(sign | (code >= infinity ? infinity : static_cast<uint32_t>(code)));
}

TEST_CASE("dtype: every code of the small formats has its value, and comes back") {
  for (const Fields& f : kFormats) {
    const uint32_t codes = 1u << (1 + f.exponent_bits + f.mantissa_bits);
    for (uint32_t code = 0; code < codes; ++code) {
      uint16_t bits = static_cast<uint16_t>(code), back = 0;
      const uint8_t byte = static_cast<uint8_t>(code);
      const void* address = size_of(f.dtype) == 2 ? static_cast<const void*>(&bits) : &byte;
      const double value = load(f.dtype, address);
      INFO(name_of(f.dtype) << " code " << code);
      REQUIRE(same(value, value_of(f, code)));
      store(f.dtype, &back, value);
      if (!std::isnan(value)) REQUIRE(back == code);
      uint16_t nan = 0;
      store(f.dtype, &nan, std::nan(""));
      REQUIRE(std::isnan(load(f.dtype, &nan)));
    }
  }
}

TEST_CASE("dtype: f16 and bf16 to float32") {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    REQUIRE(same(f16_to_f32(bits), value_of(kFormats[0], code)));
    REQUIRE(same(bf16_to_f32(bits), value_of(kFormats[1], code)));
  }
}

void check_narrowing(uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  const uint16_t half = f32_to_f16(x), brain = f32_to_bf16(x);
  if (std::isnan(x)) {
    if (!std::isnan(f16_to_f32(half)) || !std::isnan(bf16_to_f32(brain)))
      FAIL("NaN lost: " << bits);
    return;
  }
  if (half != integer_round(bits, 5, 10)) FAIL("f16 of bits " << bits << " is " << half);
  if (brain != integer_round(bits, 8, 7)) FAIL("bf16 of bits " << bits << " is " << brain);
  if (!same(round_to(DType::f16, x), f16_to_f32(half))) FAIL("round_to f16 of bits " << bits);
  if (!same(round_to(DType::bf16, x), bf16_to_f32(brain))) FAIL("round_to bf16 of bits " << bits);
}

TEST_CASE("dtype: float32 to 16 bits rounds to nearest even") {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) check_narrowing(static_cast<uint32_t>(random()));
  // Every value of the target, the ties between neighbours, and the numbers next to both.
  for (uint32_t code = 0; code < 0x10000; ++code) {
    for (const int step : {-1, 0, 1}) {
      const uint32_t half = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(code)));
      const auto offset = static_cast<uint32_t>(step);
      check_narrowing(half + offset);
      check_narrowing(half + 0x1000 + offset);
      check_narrowing((code << 16) + offset);
      check_narrowing((code << 16) + 0x8000 + offset);
    }
    // Ties of subnormal f16: odd multiples of 2^-25.
    if (code < 0x800) check_narrowing(std::bit_cast<uint32_t>(static_cast<float>(code) * 0x1p-25f));
  }
}

TEST_CASE("dtype: round_to chooses the nearer neighbour, the even one on ties, in one step") {
  for (const Fields& f : kFormats) {
    const uint32_t count = 1u << (f.exponent_bits + f.mantissa_bits);
    for (uint32_t code = 0; code + 1 < count; ++code) {
      const double low = value_of(f, code), high = value_of(f, code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = low + (high - low) / 2, even = code % 2 ? high : low;
      REQUIRE(round_to(f.dtype, middle) == even);
      // Nearer to the tie than float32 can tell: a detour through float32 would round twice.
      REQUIRE(round_to(f.dtype, std::nextafter(middle, high)) == high);
      REQUIRE(round_to(f.dtype, -std::nextafter(middle, low)) == -low);
    }
  }
  REQUIRE(std::isinf(round_to(DType::f16, 65520.0)));
  REQUIRE(round_to(DType::f16, 65519.99) == 65504);
  REQUIRE(std::isnan(round_to(DType::f8_e4m3, 464.1)));
  REQUIRE(round_to(DType::f8_e4m3, 464.0) == 448);
  REQUIRE(std::isnan(round_to(DType::f8_e4m3, -std::numeric_limits<double>::infinity())));
}

TEST_CASE("dtype: around zero the spacing is the smallest value") {
  for (const Fields& f : kFormats) {
    REQUIRE(spacing(f.dtype, 0) == value_of(f, 1));
    REQUIRE(spacing(f.dtype, -0.0) == value_of(f, 1));
  }
}

TEST_CASE("dtype: many elements at once are as one by one, at any address") {
  constexpr int64_t kCount = 5;
  const double values[kCount] = {0, 1, 2.5, 3.14159, 60.5};
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e5m2, DType::i8,
        DType::u8, DType::i32, DType::u32, DType::i64, DType::boolean}) {
    INFO(name_of(dtype));
    const int64_t size = size_of(dtype);
    std::vector<char> one(static_cast<size_t>(kCount * size + 1)), many = one;
    for (int64_t i = 0; i < kCount; ++i) store(dtype, one.data() + 1 + i * size, values[i]);
    store_all(dtype, many.data() + 1, kCount, values);
    CHECK(one == many);
    double loaded[kCount];
    load_all(dtype, one.data() + 1, kCount, loaded);
    for (int64_t i = 0; i < kCount; ++i) CHECK(loaded[i] == load(dtype, one.data() + 1 + i * size));
  }
}

TEST_CASE("dtype: names, sizes and unit roundoffs") {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    REQUIRE(info(dtype).dtype == dtype);
    REQUIRE(dtype_from_name(name_of(dtype)) == dtype);
  }
  REQUIRE_FALSE(dtype_from_name("float32"));
  REQUIRE(unit_roundoff(DType::f32) == 0x1p-24);
  REQUIRE(unit_roundoff(DType::f16) == 0x1p-11);
  REQUIRE(unit_roundoff(DType::bf16) == 0x1p-8);
  REQUIRE(unit_roundoff(DType::f8_e4m3) == 0x1p-4);
  REQUIRE(unit_roundoff(DType::f8_e5m2) == 0x1p-3);
}

}  // namespace
}  // namespace plumb
