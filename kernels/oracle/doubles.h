// The arithmetic of formulas and reductions on the oracle.
#pragma once

#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

// The arithmetic of a formula (kernels/ops/formulas.h) in float64, whose functions are off as those
// of a simulated kernel are. A fused op runs here where nothing is rounded on the way.
struct Doubles {
  double of_call, second;  // its numbers
  const Noise& noise;

  double number() const { return of_call; }
  double shift() const { return second; }
  double constant(int c) const { return c; }
  double real(double x) const { return x; }
  double infinity() const { return std::numeric_limits<double>::infinity(); }
  double over_number(double x) const { return x / of_call; }
  double round(double x) const { return x; }
  double select(bool chosen, double a, double b) const { return chosen ? a : b; }
  double reciprocal_root(double x) const { return noise.function(1 / std::sqrt(x)); }
  double abs(double x) const { return std::fabs(x); }
  double floor(double x) const { return std::floor(x); }
  double nearest(double x) const { return std::nearbyint(x); }  // of two the even one
  double sqrt(double x) const { return noise.function(std::sqrt(x)); }
  double exp(double x) const { return noise.function(std::exp(x)); }
  double expm1(double x) const { return noise.function(std::expm1(x)); }
  double log(double x) const { return noise.function(std::log(x)); }
  double log1p(double x) const { return noise.function(std::log1p(x)); }
  double sin(double x) const { return noise.function(std::sin(x)); }
  double cos(double x) const { return noise.function(std::cos(x)); }
  double erf(double x) const { return noise.function(std::erf(x)); }
  double multiply_add(double a, double b, double c) const { return std::fma(a, b, c); }
  double pow(double a, double b) const { return noise.function(std::pow(a, b)); }
  double function(double x, Activation name) const {
    const double y = activate(x, name);
    return noise.function(y, error_scale(x, y, name));
  }
  double tanh(double x) const { return function(x, Activation::tanh); }
  double silu(double x) const { return function(x, Activation::silu); }
  double gelu(double x) const { return function(x, Activation::gelu); }
  double gelu_tanh(double x) const { return function(x, Activation::gelu_tanh); }
};

}  // namespace plumb
