// Random numbers by a counter, the same on every device: Philox4x32-10 (Salmon, Moraes, Dror and
// Shaw 2011), whose key is the seed and whose counter is a number's place.
//
// Arithmetic is that of unsigned integers and float64, without fused multiply-adds.
#pragma once

#include <array>
#include <cstdint>

namespace plumb::counter {

struct Words {
  uint32_t at[4];
};

constexpr Words philox(Words c, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.at[0], b = uint64_t{0xCD9E8D57u} * c.at[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.at[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.at[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Four words of a seed.
constexpr Words block(int64_t seed, int64_t number) {
  const auto n = static_cast<uint64_t>(number);
  return philox({{static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0}},
                static_cast<uint64_t>(seed));
}

// In [0, 1), a multiple of 2^-bits: one word, or of more than 32 bits two.
constexpr double uniform(int64_t seed, int64_t number, int bits) {
  if (bits <= 32) {
    const uint32_t word = block(seed, number / 4).at[number % 4];
    return static_cast<double>(word >> (32 - bits)) / static_cast<double>(uint64_t{1} << bits);
  }
  const Words words = block(seed, number / 2);
  const int at = number % 2 == 0 ? 0 : 2;
  const uint64_t both = uint64_t{words.at[at]} << 32 | words.at[at + 1];
  return static_cast<double>(both >> (64 - bits)) / static_cast<double>(uint64_t{1} << bits);
}

// The logarithm of n / 2^32, n from 1 to 2^32: 2 artanh(s) of the significand, a series in s^2.
constexpr double log_of_fraction(uint64_t n) {
  // Of n as a double; std::bit_width compiles to 0 in kernels (nvcc 13, GCC's <bit>).
  const auto bits = __builtin_bit_cast(uint64_t, static_cast<double>(n));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = __builtin_bit_cast(double, (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1023} << 52);
  if (m > 1.4142135623730951) {
    m /= 2;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 0;
  for (int k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * square;
  return (exponent - 32) * 0.6931471805599453 + 2 * (s + s * series);
}

// Sine and cosine of 2 pi word / 2^32: Taylor's series between -pi/4 and pi/4.
struct Angle {
  double sine, cosine;
};
constexpr Angle turned(uint32_t word) {
  const uint32_t quadrant = (word + (uint32_t{1} << 29)) >> 30;
  const auto rest = static_cast<int32_t>(word - (quadrant << 30));
  const double t = rest * (6.283185307179586 / 4294967296.0), square = t * t;
  double s = 0, c = 0;
  for (int k = 16; k >= 2; k -= 2) {
    s = (1 + s) * -square / (k * (k + 1));
    c = (1 + c) * -square / (k * (k - 1));
  }
  const double sine = t + t * s, cosine = 1 + c;
  switch (quadrant % 4) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

// Two words make two numbers: radius and angle. `root`: the square root of a double.
template <class Root>
constexpr double normal(int64_t seed, int64_t number, Root root) {
  const Words words = block(seed, number / 4);
  const int at = number % 4 < 2 ? 0 : 2;
  const double radius = root(-2 * log_of_fraction(uint64_t{words.at[at]} + 1));
  const Angle angle = turned(words.at[at + 1]);
  return radius * (number % 2 == 0 ? angle.cosine : angle.sine);
}

}  // namespace plumb::counter
