// Functions in double lanes, for simd_kernels.cpp only: float32's last bit is right but for a few
// ties, whatever the argument.
#pragma once

#include "kernels/cpu/vec_math.h"

namespace plumb::cpu {
namespace {

typedef float HalfF __attribute__((vector_size(2 * kWidth)));
typedef double D __attribute__((vector_size(4 * kWidth)));
typedef int64_t L __attribute__((vector_size(4 * kWidth)));

inline D wide(double x) { return D{} + x; }
inline D multiply_add(D a, D b, D c) {
#if defined(__AVX512F__)
  return (D)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  return (D)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}
inline D square_root(D x) {
#if defined(__AVX512F__)
  return (D)_mm512_sqrt_pd((__m512d)x);
#elif defined(__AVX2__)
  return (D)_mm256_sqrt_pd((__m256d)x);
#else
  for (int i = 0; i < kWidth / 2; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// Lowest power first. Even and odd powers do not wait for each other.
template <class C, int N>
inline D horner(D x, const C (&coefficients)[N]) {
  const D square = x * x;
  D parts[2] = {wide(coefficients[(N - 1) / 2 * 2]), wide(coefficients[N / 2 * 2 - 1])};
#pragma GCC unroll 32
  for (int i = N - 3; i >= 0; --i) {
    parts[i % 2] = multiply_add(parts[i % 2], square, wide(coefficients[i]));
  }
  return multiply_add(parts[1], x, parts[0]);
}

constexpr double kToInteger = 0x1.8p52;  // adding it rounds to an integer, kept in the low bits
constexpr double kLog2 = 0x1.62e42fefa39efp-1;

inline HalfF half(F x, int i) {
  HalfF out[2];
  __builtin_memcpy(out, &x, sizeof x);
  return out[i];
}
// f of vectors of doubles, on vectors of floats.
template <class Function, class... Floats>
inline F in_doubles(Function f, Floats... x) {
  HalfF out[2];
  for (int i = 0; i < 2; ++i) {
    out[i] = __builtin_convertvector(f(__builtin_convertvector(half(x, i), D)...), HalfF);
  }
  F joined;
  __builtin_memcpy(&joined, out, sizeof joined);
  return joined;
}

// e^x = scale (1 + less_one), float32's range and more. x = n ln 2 + r, |r| <= ln 2 / 2; less_one
// is r's Taylor series, whose rest is below 2^-46 of it. 0 from -200 down.
struct Exponential {
  D less_one, scale;
};
inline Exponential exponential(D x) {
  constexpr double c[] = {1.0,          1.0 / 2,       1.0 / 6,        1.0 / 24,
                          1.0 / 120,    1.0 / 720,     1.0 / 5040,     1.0 / 40320,
                          1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  const L is_zero = x < -200.0;
  x = is_zero ? wide(-200.0) : x;  // NaN stays
  x = x > wide(200.0) ? wide(200.0) : x;
  const D shifted = multiply_add(x, wide(1 / kLog2), wide(kToInteger)), n = shifted - kToInteger;
  // ln 2 in two parts; the first has 32 bits, so that n times it is exact.
  const D r = multiply_add(n, wide(0x1.718432a1b0e26p-35), x - n * 0x1.62e42ffp-1);
  return {r * horner(r, c), (D)(((L)shifted + 1023) << 52 & ~is_zero)};
}

// log u where less_one is u - 1, which alone counts next to 1. u = 2^n m, sqrt(1/2) <= m < sqrt 2,
// log m = 2 artanh((m - 1) / (m + 1)), the series of whose rest is below 2^-52.
inline D logarithm(D u, D less_one) {
  constexpr double c[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,
                          2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
  const L n = ((L)u - 0x3fe6a09e667f3bcd) >> 52;
  const D whole = (D)(n + (L)wide(kToInteger)) - kToInteger;
  const D f = n == 0 ? less_one : (D)((L)u - (n << 52)) - 1.0;
  const D s = f / (f + 2.0);
  const D log = whole * kLog2 + s * horner(s * s, c);
  const D infinity = wide(__builtin_inf());
  const D special = u == 0.0 ? -infinity : u == infinity ? u : wide(__builtin_nan(""));
  return (u > 0.0) & (u < infinity) ? log : special;
}

inline D value(Exponential e) { return multiply_add(e.scale, e.less_one, e.scale); }
inline D value_less_one(Exponential e) { return multiply_add(e.scale, e.less_one, e.scale - 1.0); }

inline F exp(F x) {
  return in_doubles([](D v) { return value(exponential(v)); }, x);
}
inline F expm1(F x) {
  return in_doubles([](D v) { return value_less_one(exponential(v)); }, x);
}
inline F log(F x) {
  return in_doubles([](D v) { return logarithm(v, v - 1.0); }, x);
}
inline F log1p(F x) {
  return in_doubles([](D v) { return logarithm(v + 1.0, v); }, x);
}

// |x| < 4: x times a minimax polynomial of x^2 / 8 - 1, error 2^-38; else 1 to float32's last bit.
inline F erf(F x) {
  constexpr double c[] = {
      0x1.6a040781a7a57p-2,  -0x1.69a0ccda3fddcp-3,  0x1.0dabaf0052545p-3,  -0x1.b92e95bdf6ef4p-4,
      0x1.717efe43d8378p-4,  -0x1.3215d94772f8fp-4,  0x1.ea97b97dcfa5fp-5,  -0x1.76e853192f7d9p-5,
      0x1.0ed6e7dbd8678p-5,  -0x1.7036105d98834p-6,  0x1.d61512004ff62p-7,  -0x1.19f8295a7ffaap-7,
      0x1.3ecd837936f89p-8,  -0x1.526260b83154ap-9,  0x1.4d9014bdd4451p-10, -0x1.3e0c75f8ad904p-11,
      0x1.399c103d51c8dp-12, -0x1.0654e39321f81p-13, 0x1.051075c9ab99ap-15, -0x1.bcf1ce0928958p-17,
      0x1.bc776ad31e4bep-17, -0x1.2bcaa50b10d86p-18};
  const F y = in_doubles([&](D v) { return v * horner(v * v * 0.125 - 1.0, c); }, x);
  return absolute(x) >= splat(4.0f) ? with_sign_of(splat(1.0f), x) : y;
}

// a^b with the special cases of IEEE 754.
inline D power(D a, D b) {
  const D size = (D)((L)a & INT64_MAX), most = wide(0x1p25);
  const D small = (D)((L)b & INT64_MAX) > most ? wide(0.0) : b;  // larger ones are even
  const auto is_integer = [](D v) { return (v + kToInteger) - kToInteger == v; };
  const L whole = is_integer(small), odd = whole & ~is_integer(small * 0.5);
  const L is_one = (b == 0.0) | (a == 1.0) | ((size == 1.0) & (b == b));
  const Exponential e = exponential(is_one ? wide(0.0) : b * logarithm(size, size - 1.0));
  const L magnitude = (L)value(e);
  const L has_none = (a < 0.0) & (size < __builtin_inf()) & ~whole;
  return has_none ? wide(__builtin_nan("")) : (D)(magnitude | ((L)a & INT64_MIN & odd));
}
inline F pow(F a, F b) {
  return in_doubles([](D x, D y) { return power(x, y); }, a, b);
}

// Those of vec_math.h that are off by more than a float32 result may be, or have no tail of
// subnormal numbers.

inline F exact_reciprocal_root(F x) {
  return in_doubles([](D v) { return 1.0 / square_root(v); }, x);
}
inline F exact_tangent(F x) {
  const auto f = [](D v) {
    const D e = value_less_one(exponential(v + v));
    return e / (e + 2.0);
  };
  return with_sign_of(in_doubles(f, absolute(x)), x);
}
inline D times_logistic(D x, D z) {
  const D e = value(exponential(z));
  return x * e / (1.0 + e);
}
inline F exact_silu(F x) {
  const F y = silu(x);
  if (!any_below(x, -87.0f)) return y;
  // No other element: its bits would depend on its neighbours.
  const F tail = in_doubles([](D v) { return times_logistic(v, v); }, x);
  return x < splat(-87.0f) ? tail : y;
}
inline F exact_gelu_tanh(F x) {
  const auto f = [](D v) {
    return times_logistic(v, (v * v * v * 0.044715 + v) * 0x1.9884533d43651p0);  // 2 sqrt(2 / pi)
  };
  return in_doubles(f, x);
}
inline F exact_gelu(F x) {
  const auto f = [](D v) {
    const D a = (D)((L)v & INT64_MAX), t = 1.0 / (a * 0.25 + 1.0);
    const D density = value(exponential(v * v * -0.5)), tail = t * horner(t, kNormalFar);
    const D far = v < 0.0 ? v * tail * density : v * (1.0 - tail * density);
    return a < 1.0 ? v * (v * horner(v * v, kNormalNear) + 0.5) : far;
  };
  return in_doubles(f, x);
}

// x = n pi/2 + r, |r| <= pi/4, then sin r = r + r^3 s(r^2), error 2^-37, and cos r = 1 + r^2
// c(r^2), error 2^-43; n mod 4 says which of them and with which sign.
inline void cos_sin(HalfF x, double factor, HalfF& cosine, HalfF& sine) {
  constexpr double s[] = {-0x1.5555554c71d0ap-3, 0x1.1111086a60fa9p-7, -0x1.a00f7f288017p-13,
                          0x1.6cd1f2a2984p-19};
  constexpr double c[] = {-0x1.ffffffffe98afp-2, 0x1.55555545c513dp-5, -0x1.6c16b348bce5p-10,
                          0x1.a00eb9b0308p-16, -0x1.23c97ea354p-22};
  const D angle = __builtin_convertvector(x, D);
  const D magic = D{} + 0x1.8p52;  // adding it rounds to an integer, kept in the low bits
  const D shifted = angle * 0x1.45f306dc9c883p-1 + magic;
  const D n = shifted - magic;
  // pi/2 in two parts; the first has 32 bits, so that n times it is exact.
  const D r = (angle - n * 0x1.921fb544p0) - n * 0x1.0b4611a626331p-34;
  const D square = r * r;
  const D sin_r = r * square * horner(square, s) + r;
  const D cos_r = square * horner(square, c) + 1.0;
  const L quarter = (L)shifted;
  const L odd = -(quarter & 1);
  const L swapped = ((L)sin_r ^ (L)cos_r) & odd;
  const auto with_sign = [factor](L bits, L turn) {
    return __builtin_convertvector((D)(bits ^ (turn & 2) << 62) * factor, HalfF);
  };
  cosine = with_sign((L)cos_r ^ swapped, quarter + 1);
  sine = with_sign((L)sin_r ^ swapped, quarter);
}

inline void cos_sin(F x, double factor, F& cosine, F& sine) {
  HalfF in[2], c[2], s[2];
  __builtin_memcpy(in, &x, sizeof x);
  for (int i = 0; i < 2; ++i) cos_sin(in[i], factor, c[i], s[i]);
  __builtin_memcpy(&cosine, c, sizeof c);
  __builtin_memcpy(&sine, s, sizeof s);
}

// Lanes beyond the largest angle, one by one.
template <class Function>
inline F beyond_angles(F x, F y, Function f) {
  if (!any_below(negative(x), -kMostAngle)) return y;
  for (int i = 0; i < kWidth; ++i) {
    if (!(__builtin_fabsf(x[i]) <= kMostAngle))
      y[i] = static_cast<float>(f(static_cast<double>(x[i])));
  }
  return y;
}
inline F sin(F x) {
  F c, s;
  cos_sin(x, 1, c, s);
  return beyond_angles(x, s, [](double v) { return __builtin_sin(v); });
}
inline F cos(F x) {
  F c, s;
  cos_sin(x, 1, c, s);
  return beyond_angles(x, c, [](double v) { return __builtin_cos(v); });
}

}  // namespace
}  // namespace plumb::cpu
