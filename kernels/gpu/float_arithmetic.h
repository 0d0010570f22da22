// The arithmetic of formulas and reductions on a GPU.
#pragma once

#include "kernels/gpu/functions.h"

namespace plumb::PLUMB_GPU_VENDOR {

// The arithmetic of a formula (kernels/ops/formulas.h) in float32.
template <class T>
struct FloatArithmetic {
  float of_call, reciprocal, second;  // its numbers

  __host__ __device__ FloatArithmetic(float number, float shift)
      : of_call(number), reciprocal(1.0f / number), second(shift) {}
  __device__ float number() const { return of_call; }
  __device__ float shift() const { return second; }
  __device__ float constant(int c) const { return static_cast<float>(c); }
  __device__ float real(double x) const { return static_cast<float>(x); }
  // 16-bit types take a product with the reciprocal, off by less than 2^-23.
  __device__ float over_number(float x) const {
    if constexpr (sizeof(T) == 4) {
      return x / of_call;
    } else {
      return x * reciprocal;
    }
  }
  __device__ float round(float x) const { return rounded<T>(x); }
  __device__ float infinity() const { return INFINITY; }
  template <class V>
  __device__ V select(bool chosen, V a, V b) const {
    return chosen ? a : b;
  }
  __device__ float reciprocal_root(float x) const { return approximate_reciprocal_sqrt(x); }
  __device__ float abs(float x) const { return fabsf(x); }
  __device__ float floor(float x) const { return floorf(x); }
  __device__ float nearest(float x) const { return rintf(x); }  // of two the even one
  __device__ float sqrt(float x) const { return sqrtf(x); }
  __device__ float exp(float x) const { return expf(x); }
  __device__ float expm1(float x) const { return expm1f(x); }
  __device__ float log(float x) const { return logf(x); }
  __device__ float log1p(float x) const { return log1pf(x); }
  __device__ float sin(float x) const { return sinf(x); }
  __device__ float cos(float x) const { return cosf(x); }
  __device__ float erf(float x) const { return erff(x); }
  __device__ float multiply_add(float a, float b, float c) const {
    return fused_multiply_add(a, b, c);
  }
  __device__ float pow(float a, float b) const { return powf(a, b); }
  __device__ float tanh(float x) const { return hyperbolic_tangent<T>(x); }
  __device__ float silu(float x) const { return activate<T, Activation::silu>(x); }
  __device__ float gelu(float x) const { return activate<T, Activation::gelu>(x); }
  __device__ float gelu_tanh(float x) const { return activate<T, Activation::gelu_tanh>(x); }
};

}  // namespace plumb::PLUMB_GPU_VENDOR
