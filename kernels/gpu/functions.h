// Activation functions in float32, without the cancellation of the textbook forms at negative x.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

__device__ inline float logistic_times(float x, float z) {  // x / (1 + e^-z)
  return x / (1.0f + expf(-z));
}

template <Activation Function>
__device__ inline float activate(float x) {
  if constexpr (Function == Activation::silu) {
    return logistic_times(x, x);
  } else if constexpr (Function == Activation::gelu) {
    return 0.5f * x * erfcf(-0.70710678118654752f * x);
  } else if constexpr (Function == Activation::gelu_tanh) {
    // x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    return logistic_times(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
  } else {
    return tanhf(x);
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
