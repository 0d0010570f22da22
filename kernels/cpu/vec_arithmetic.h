// The arithmetic of formulas and reductions on one vector, for simd_kernels.cpp only.
#pragma once

#include "kernels/cpu/vec_wide.h"

namespace plumb::cpu {
namespace {

// The arithmetic of a formula (kernels/ops/formulas.h), on one vector. Of 16-bit rows float32's
// last bits and its subnormal numbers do not count.
template <Stored S>
struct Lanes {
  F of_call, second;  // its numbers
  F number() const { return of_call; }
  F shift() const { return second; }
  F constant(int c) const { return splat(static_cast<float>(c)); }
  F real(double x) const { return splat(static_cast<float>(x)); }
  F over_number(F x) const { return x / of_call; }
  F round(F x) const { return rounded<S>(x); }
  F infinity() const { return splat(__builtin_inff()); }
  F select(I chosen, F a, F b) const { return chosen ? a : b; }
  I select(I chosen, I a, I b) const { return chosen ? a : b; }
  F reciprocal_root(F x) const {
    return S == kF32 ? exact_reciprocal_root(x) : splat(1.0f) / square_root(x);
  }
  F abs(F x) const { return absolute(x); }
  F floor(F x) const { return cpu::floor(x); }
  F nearest(F x) const { return cpu::nearest(x); }
  F sqrt(F x) const { return square_root(x); }
  F exp(F x) const { return cpu::exp(x); }
  F expm1(F x) const { return cpu::expm1(x); }
  F log(F x) const { return cpu::log(x); }
  F log1p(F x) const { return cpu::log1p(x); }
  F sin(F x) const { return cpu::sin(x); }
  F cos(F x) const { return cpu::cos(x); }
  F erf(F x) const { return cpu::erf(x); }
  F pow(F a, F b) const { return cpu::pow(a, b); }
  // Where the processor has no such instruction, in float64, which has the whole product.
  F multiply_add(F a, F b, F c) const {
#ifdef __FMA__
    return cpu::multiply_add(a, b, c);
#else
    return in_doubles([](D x, D y, D z) { return x * y + z; }, a, b, c);
#endif
  }
  F tanh(F x) const { return S == kF32 ? exact_tangent(x) : hyperbolic_tangent(x); }
  F silu(F x) const { return S == kF32 ? exact_silu(x) : cpu::silu(x); }
  F gelu(F x) const { return S == kF32 ? exact_gelu(x) : cpu::gelu(x); }
  F gelu_tanh(F x) const { return S == kF32 ? exact_gelu_tanh(x) : cpu::gelu_tanh(x); }
};

}  // namespace
}  // namespace plumb::cpu
