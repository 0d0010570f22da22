// The arithmetic of formulas and reductions on floats that are no narrower than double: of f64 on
// every device, and of long double, which judges it.
#pragma once

#include <cmath>
#include <limits>

namespace plumb {

template <class T>
struct Reals {
  T of_call{}, second{};  // its numbers

  // clang-format off
  constexpr T number() const { return of_call; }
  constexpr T shift() const { return second; }
  constexpr T constant(int c) const { return static_cast<T>(c); }
  constexpr T real(double x) const { return static_cast<T>(x); }
  constexpr T infinity() const { return std::numeric_limits<T>::infinity(); }
  constexpr T over_number(T x) const { return x / of_call; }
  constexpr T round(T x) const { return x; }
  template <class V>
  constexpr V select(bool chosen, V a, V b) const { return chosen ? a : b; }
  constexpr T reciprocal_root(T x) const { return 1 / std::sqrt(x); }
  constexpr T abs(T x) const { return std::fabs(x); }
  constexpr T floor(T x) const { return std::floor(x); }
  constexpr T nearest(T x) const { return std::nearbyint(x); }  // of two the even one
  constexpr T sqrt(T x) const { return std::sqrt(x); }
  constexpr T exp(T x) const { return std::exp(x); }
  constexpr T expm1(T x) const { return std::expm1(x); }
  constexpr T log(T x) const { return std::log(x); }
  constexpr T log1p(T x) const { return std::log1p(x); }
  constexpr T sin(T x) const { return std::sin(x); }
  constexpr T cos(T x) const { return std::cos(x); }
  constexpr T erf(T x) const { return std::erf(x); }
  constexpr T multiply_add(T a, T b, T c) const { return std::fma(a, b, c); }
  constexpr T pow(T a, T b) const { return std::pow(a, b); }
  constexpr T tanh(T x) const { return std::tanh(x); }
  constexpr T silu(T x) const { return logistic(x, x); }
  constexpr T gelu(T x) const { return x / 2 * std::erfc(-x * std::sqrt(T{1} / 2)); }
  constexpr T gelu_tanh(T x) const {
    const T root = std::sqrt(2 / std::acos(T{-1}));  // of 2 / pi
    return logistic(x, 2 * root * (x + static_cast<T>(0.044715) * x * x * x));
  }
  // clang-format on

 private:
  static constexpr T logistic(T x, T z) {  // x / (1 + e^-z), without overflow
    const T e = std::exp(-std::fabs(z));
    return (z < 0 ? x * e : x) / (1 + e);
  }
};

}  // namespace plumb
