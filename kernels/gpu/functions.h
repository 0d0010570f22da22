// Activation functions in float32, without the cancellation of the textbook forms at negative x.
//
// T is the storage type of the result. For 16-bit ones the hardware's approximate exponential and
// quotient do: their errors, 2^-20, are far below a rounding to 11 bits, and IEEE versions would
// make these kernels bound by arithmetic instead of memory.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops/ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);
  } else {
    return approximate_exp(x);
  }
}

template <class T>
__device__ inline float hyperbolic_tangent(float x) {
  if constexpr (sizeof(T) == 4) {
    return tanhf(x);
  } else {
    // x P(x^2) / Q(x^2), fitted to a relative error of 2^-21 up to 5 (weighted least squares,
    // reweighted until level); beyond that every 16-bit type rounds to 1. NaN stays.
    const float low = x < -5.0f ? -5.0f : x, v = low > 5.0f ? 5.0f : low, t = v * v;
    float p = fused_multiply_add(t, 5.18300756e-06f, 2.50900949e-03f);
    p = fused_multiply_add(t, p, 0.125482249f);
    p = fused_multiply_add(t, p, 0.999999939f);
    float q = fused_multiply_add(t, 1.69039100e-04f, 2.21149965e-02f);
    q = fused_multiply_add(t, q, 0.458814978f);
    return approximate_quotient(v * p, fused_multiply_add(t, q, 1.0f));
  }
}

// y e^z for z from -110 to -70, where e^z would be subnormal: y has the factor kTiny already, and
// the last product alone may be subnormal. The sum is exact, and of all whole numbers 22 gives the
// factor that is nearest to a float.
inline constexpr double kTiny = 2.7894680928689246e-10;  // e^-22
__device__ inline float times_tiny_exponential(float y, float z) { return y * expf(z + 22.0f); }

// x / (1 + e^-(z + tail)), `tail` being what the rounding of z left out.
template <class T>
__device__ inline float logistic_times(float x, float z, float tail = 0) {
  if constexpr (sizeof(T) == 4) {
    if (z < -80.0f) {  // e^-z could overflow
      const float y = x * static_cast<float>(kTiny);
      return times_tiny_exponential(fused_multiply_add(y, tail, y), z);
    }
    return x / (1.0f + expf(-z) * (1.0f - tail));
  } else {
    // e^-|z| <= 1: the quotient's divisor stays between 1 and 2, and tails do not underflow early.
    const float e = approximate_exp(-fabsf(z)), numerator = z < 0 ? x * e : x;
    return approximate_quotient(numerator, 1.0f + e);
  }
}

// The chance of more than x >= 0 under the normal distribution: e^(-x^2/2) P(s), s = 1 / (1 + c x),
// P fitted to a relative error of 2^-22 up to 14 (weighted least squares, reweighted until level).
__device__ inline float normal_tail(float x) {
  const float s = approximate_quotient(1.0f, fused_multiply_add(x, 0.3005204f, 1.0f));
  float p = fused_multiply_add(s, 0.03574036f, -0.15658367f);
  p = fused_multiply_add(s, p, 0.20381795f);
  p = fused_multiply_add(s, p, -0.051633988f);
  p = fused_multiply_add(s, p, 0.12754782f);
  p = fused_multiply_add(s, p, 0.100351624f);
  p = fused_multiply_add(s, p, 0.12092053f);
  p = fused_multiply_add(s, p, 0.119839296f);
  return s * p * approximate_exp(-0.5f * x * x);
}

// Both GeLUs are x or 0 to float32's last bit from here on.
inline constexpr float kSaturated = 20;

template <class T, Activation Function>
__device__ inline float activate(float x) {
  if constexpr (Function == Activation::silu) {
    return logistic_times<T>(x, x);
  } else if constexpr (Function == Activation::gelu) {
    if constexpr (sizeof(T) != 4) {
      const float tail = normal_tail(fabsf(x));
      return x * (x < 0 ? tail : 1.0f - tail);
    }
    constexpr float kRoot = 0.70710678118654752f, kRootTail = 1.210161715e-08f;
    const float t = -kRoot * x;
    if (x > -0.5f) return 0.5f * x * (1.0f + erff(kRoot * x));  // no cancellation
    // Far out erfc turns an error of t into one 2 t^2 times as large: carry what its rounding left
    // out, times erfc' = -2/sqrt(pi) e^(-t^2).
    if (!(fabsf(x) < kSaturated)) return 0.5f * x * erfcf(t);
    if (x < -12.0f) {  // the asymptotic series, rounded once: its first term is a sum of two floats
      constexpr double kFirst = -0.39894228040143268 * kTiny;  // -1 / sqrt(2 pi)
      constexpr float kHead = kFirst, kTail = kFirst - static_cast<double>(kHead), kSlope = -kFirst,
                      kSquare = 3 * kFirst, kCube = -15 * kFirst, kFourth = 105 * kFirst;
      const float square = x * x, left_out = fused_multiply_add(x, x, -square), i = 1.0f / square;
      float series = fused_multiply_add(i, kFourth, kCube);
      series = fused_multiply_add(i, fused_multiply_add(i, series, kSquare), kSlope);
      const float first = fused_multiply_add(-0.5f * kHead, left_out, kTail);
      return times_tiny_exponential(kHead + fused_multiply_add(i, series, first), -0.5f * square);
    }
    const float tail = -fused_multiply_add(kRootTail, x, fused_multiply_add(kRoot, x, t));
    return 0.5f * x * fused_multiply_add(-1.128379167e+00f * expf(-t * t), tail, erfcf(t));
  } else if constexpr (Function == Activation::gelu_tanh) {
    // x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    constexpr float kLinear = 1.5957691216057308f, kCubic = 0.07135481627260025f;
    const float square = x * x, inner = fused_multiply_add(square, kCubic, kLinear), u = x * inner;
    if (sizeof(T) != 4 || !(fabsf(x) < kSaturated)) return logistic_times<T>(x, u);
    // exp turns an absolute error of u into a relative one: carry what the roundings of the
    // constants, of the square and of both products left out.
    constexpr float kLinearTail = -4.534068032e-08f, kCubicTail = 2.398832397e-09f;
    const float cubic = square * kCubic;  // the larger summand first: differences are exact
    float tail = cubic < kLinear
                     ? fused_multiply_add(square, kCubic, kLinear - inner)
                     : fused_multiply_add(square, kCubic, -cubic) + (cubic - inner + kLinear);
    tail = fused_multiply_add(fused_multiply_add(x, x, -square), kCubic, tail);
    tail += fused_multiply_add(square, kCubicTail, kLinearTail);
    return logistic_times<T>(x, u, fused_multiply_add(x, tail, fused_multiply_add(x, inner, -u)));
  } else {
    return hyperbolic_tangent<T>(x);
  }
}

// Calls f.template operator()<Function>().
template <class F>
void with_activation(Activation function, F f) {
  switch (function) {
    case Activation::silu: return f.template operator()<Activation::silu>();
    case Activation::gelu: return f.template operator()<Activation::gelu>();
    case Activation::gelu_tanh: return f.template operator()<Activation::gelu_tanh>();
    case Activation::tanh: return f.template operator()<Activation::tanh>();
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR
