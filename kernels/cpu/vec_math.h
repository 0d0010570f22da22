// exp, tanh and the activations on vectors, for simd_kernels.cpp only. The polynomials are minimax
// fits of this project (Lawson's iterated weighted least squares in double, rounded to float);
// below, "error" is that of the polynomial, the float evaluation adds about one ulp.
#pragma once

#include "kernels/cpu/vec.h"

namespace plumb::cpu {
namespace {

template <int N>
inline F horner(F x, const float (&coefficients)[N]) {  // lowest power first
  F sum = splat(coefficients[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = multiply_add(sum, x, splat(coefficients[i]));
  return sum;
}

// Which lanes stay; the others become zero.
#if defined(__AVX512F__)
typedef __mmask16 Kept;
inline Kept not_below(F x, float least) {  // NaN stays
  return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(least), _CMP_NLT_UQ);
}
inline F keep(Kept kept, F x) { return (F)_mm512_maskz_mov_ps(kept, (__m512)x); }
#else
typedef I Kept;
inline Kept not_below(F x, float least) { return ~(x < splat(least)); }
inline F keep(Kept kept, F x) { return (F)((I)x & kept); }
#endif

// p 2^n for |n| <= 150, rounded once where that is subnormal.
inline F scaled_by_power(Kept kept, F p, F n) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
  const I exponent = __builtin_convertvector(n, I), half = exponent >> 1;
  const F scale1 = (F)((half + 127) << 23), scale2 = (F)((exponent - half + 127) << 23);
  return keep(kept, p * scale1 * scale2);
#endif
}

// exp of x <= 89, whose remainder `adjust` may change by much less than 1. Cody and Waite's
// reduction x = n ln 2 + r, |r| <= ln 2 / 2, then exp(r) = 1 + r + r^2 q(r), error 2^-34. Exact
// limits: 0 from -104 down and for -inf, inf at 89, NaN stays. Few operations that wait for each
// other: a loop over it is bound by their latency.
template <class Adjust>
inline F exp_adjusted(F x, Adjust adjust) {
  constexpr float q[] = {0x1.000000p-1f, 0x1.555554p-3f,  0x1.55548ep-5f,
                         0x1.111272p-7f, 0x1.6d8db0p-10f, 0x1.9f0810p-13f};
  const Kept kept = not_below(x, -104.0f);
#if !defined(__AVX512F__)  // which drops these lanes at the end, whatever they are
  x = keep(kept, x);       // masked scores: computed as exp(0), underflow is slow
#endif
  const F magic = splat(0x1.8p23f);  // adding it rounds to an integer
  const F n = multiply_add(x, splat(0x1.715476p0f), magic) - magic;
  // ln 2 in two parts; the first has 15 bits, so that n times it is exact.
  const F r =
      adjust(multiply_add(n, splat(-0x1.7f7d1cp-20f), multiply_add(n, splat(-0x1.62e4p-1f), x)));
  const F square = r * r;
  const auto pair = [&](int i) { return multiply_add(r, splat(q[i + 1]), splat(q[i])); };
  const F curve = multiply_add(square, multiply_add(square, pair(4), pair(2)), pair(0));
  const F p = multiply_add(square, curve, r) + splat(1.0f);
  return scaled_by_power(kept, p, n);
}

inline F exponential_of_negative(F x) {
  return exp_adjusted(x, [](F r) { return r; });
}
inline F exponential(F x) { return exponential_of_negative(at_most(89.0f, x)); }
// exp(x + low) for x <= 0, |low| much smaller than 1.
inline F exp_of_sum(F x, F low) {
  return exp_adjusted(x, [low](F r) { return r + low; });
}

// |x| < 0.6: x + x^3 q(x^2), error 2^-33; else 1 - 2 / (e^2|x| + 1).
inline F hyperbolic_tangent(F x) {
  constexpr float q[] = {-0x1.555554p-2f, 0x1.11109ap-3f,  -0x1.b9f9c6p-5f,
                         0x1.641026p-6f,  -0x1.0eb8aap-7f, 0x1.23c2f6p-9f};
  const F z = x * x;
  const F near = multiply_add(x * z, horner(z, q), x);
  const F magnitude = absolute(x);
  const F far = splat(1.0f) - splat(2.0f) / (exponential(magnitude + magnitude) + splat(1.0f));
  return magnitude < splat(0.6f) ? near : with_sign_of(far, x);
}

// x / (1 + e^-z), without overflow and without cancellation for either sign of z.
inline F times_logistic(F x, F z) {
  const F e = exponential_of_negative(negative(z));
  const F numerator = z < F{} ? x * e : x;
  return numerator / (splat(1.0f) + e);
}

inline F silu(F x) { return times_logistic(x, x); }

// x/2 (1 + tanh u) = x / (1 + e^-2u): the same function without the cancellation at negative u.
inline F gelu_tanh(F x) {
  const F inner = multiply_add(x * x * x, splat(0.044715f), x);
  return times_logistic(x, inner * splat(0x1.988454p0f));  // 2 sqrt(2 / pi)
}

// x Phi(x). |x| < 1: Phi = 1/2 + x q(x^2), error 2^-30. Else Phi(-a) = e^(-a^2/2) t p(t), t = 1 /
// (1 + a/4) for a > 0, error 2^-29: 1 + erf would cancel at negative x.
constexpr float kNormalNear[] = {0x1.988454p-2f,   -0x1.105826p-4f, 0x1.46cc3ap-7f,
                                 -0x1.36d862p-10f, 0x1.d9bc70p-14f, -0x1.f4b4e4p-18f};
constexpr float kNormalFar[] = {0x1.987b4cp-4f,  0x1.996070p-4f, 0x1.75c24ep-4f,  0x1.8551e6p-4f,
                                0x1.eaa80ep-8f,  0x1.8c583ap-3f, -0x1.00012ap-2f, 0x1.59a148p-2f,
                                -0x1.005f96p-2f, 0x1.6744b4p-4f, -0x1.848da8p-7f};

// The square is split so that its rounding does not grow through exp: h has 12 bits, its square is
// exact.
inline F gelu(F x) {
  F a = absolute(x);
  const F near = multiply_add(x, horner(x * x, kNormalNear), splat(0.5f));
  a = at_most(16.0f, a);  // Phi(-16) is below the smallest float
  const F t = splat(1.0f) / multiply_add(a, splat(0.25f), splat(1.0f));
  const F h = (F)((U)a & 0xfffff000u);
  const F density = exp_of_sum(splat(-0.5f) * h * h, splat(-0.5f) * ((a - h) * (a + h)));
  const F tail = density * (t * horner(t, kNormalFar));
  const F far = x < F{} ? tail : splat(1.0f) - tail;
  return x * (a < splat(1.0f) ? near : far);
}

}  // namespace
}  // namespace plumb::cpu
