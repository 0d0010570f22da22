// Activation functions in float32, without the cancellation of the textbook forms at negative x.
//
// T is the storage type of the result. For 16-bit ones the hardware's approximate exponential and
// quotient do: their errors, 2^-20, are far below a rounding to 11 bits, and IEEE versions would
// make these kernels bound by arithmetic instead of memory.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops.h"

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
__device__ inline float quotient(float a, float b) {
  if constexpr (sizeof(T) == 4) {
    return a / b;
  } else {
    return approximate_quotient(a, b);
  }
}

template <class T>
__device__ inline float hyperbolic_tangent(float x) {
  if constexpr (sizeof(T) == 4) {
    return tanhf(x);
  } else {
    // Near 0 the quotient would cancel; the series up to x^9 is right to 2^-24 below 0.3.
    const float s = x * x;
    float series = fused_multiply_add(s, 62.0f / 2835, -17.0f / 315);
    series = fused_multiply_add(s, series, 2.0f / 15);
    series = fused_multiply_add(s, series, -1.0f / 3);
    series = fused_multiply_add(x * s, series, x);
    const float far = 1.0f - approximate_quotient(2.0f, 1.0f + approximate_exp(2.0f * fabsf(x)));
    return s < 0.09f ? series : copysignf(far, x);  // NaN goes the second way and stays
  }
}

template <class T>
__device__ inline float logistic_times(float x, float z) {  // x / (1 + e^-z)
  return quotient<T>(x, 1.0f + exponential<T>(-z));
}

template <class T, Activation Function>
__device__ inline float activate(float x) {
  if constexpr (Function == Activation::silu) {
    return logistic_times<T>(x, x);
  } else if constexpr (Function == Activation::gelu) {
    return 0.5f * x * erfcf(-0.70710678118654752f * x);
  } else if constexpr (Function == Activation::gelu_tanh) {
    // x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    return logistic_times<T>(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
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
