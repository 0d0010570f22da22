// Dual numbers: a value with its derivative. A formula (kernels/ops/formulas.h) that is read with
// them gives its own derivative, which is therefore written nowhere.
//
// No standard library: kernels/cpu/simd_kernels.cpp says why.
#pragma once

namespace plumb::formulas {

template <class V>
struct Dual {
  V value, by;  // by: the derivative
};

// What is no dual number is a constant.
// clang-format off
template <class V> constexpr Dual<V> operator-(Dual<V> x) { return {-x.value, -x.by}; }
template <class V> constexpr Dual<V> operator+(Dual<V> a, Dual<V> b) { return {a.value + b.value, a.by + b.by}; }
template <class V> constexpr Dual<V> operator+(Dual<V> a, V b) { return {a.value + b, a.by}; }
template <class V> constexpr Dual<V> operator+(V a, Dual<V> b) { return {a + b.value, b.by}; }
template <class V> constexpr Dual<V> operator*(Dual<V> a, Dual<V> b) { return {a.value * b.value, a.by * b.value + a.value * b.by}; }
template <class V> constexpr Dual<V> operator*(Dual<V> a, V b) { return {a.value * b, a.by * b}; }
template <class V> constexpr Dual<V> operator*(V a, Dual<V> b) { return {a * b.value, a * b.by}; }
template <class V> constexpr Dual<V> operator/(Dual<V> a, Dual<V> b) {
  const V quotient = a.value / b.value;
  return {quotient, (a.by - quotient * b.by) / b.value};
}
template <class V> constexpr auto operator<(Dual<V> a, V b) { return a.value < b; }
// clang-format on

// The arithmetic M of values as one of dual numbers. R() between two steps changes no derivative,
// nor does it happen: a derivative is computed in full and rounded once. Sigmoid: its formula.
template <class M, class Sigmoid>
struct Duals {
  const M& m;

  template <class V>
  constexpr Dual<V> dual(V x) const {
    return {x, m.constant(1)};
  }
  constexpr auto constant(int c) const { return m.constant(c); }
  constexpr auto number() const { return m.number(); }
  template <class V>
  constexpr Dual<V> over_number(Dual<V> x) const {
    return {m.over_number(x.value), m.over_number(x.by)};
  }
  template <class V>
  constexpr Dual<V> round(Dual<V> x) const {
    return x;
  }
  template <class C, class V>
  constexpr Dual<V> select(C chosen, Dual<V> a, Dual<V> b) const {
    return {m.select(chosen, a.value, b.value), m.select(chosen, a.by, b.by)};
  }
  template <class C, class V>
  constexpr Dual<V> select(C chosen, Dual<V> a, V b) const {
    return select(chosen, a, Dual<V>{b, m.constant(0)});
  }
  template <class C, class V>
  constexpr Dual<V> select(C chosen, V a, Dual<V> b) const {
    return select(chosen, Dual<V>{a, m.constant(0)}, b);
  }

  template <class V>
  constexpr Dual<V> abs(Dual<V> x) const {
    return {m.abs(x.value), m.select(x.value < m.constant(0), -x.by, x.by)};
  }
  template <class V>
  constexpr Dual<V> exp(Dual<V> x) const {
    const V y = m.exp(x.value);
    return {y, y * x.by};
  }
  template <class V>
  constexpr Dual<V> log1p(Dual<V> x) const {
    return {m.log1p(x.value), x.by / (m.constant(1) + x.value)};
  }
  // 1 / cosh^2 = 4 e / (1 + e)^2 with e = exp(-2 |x|): 1 - tanh^2 cancels.
  template <class V>
  constexpr Dual<V> tanh(Dual<V> x) const {
    const V e = m.exp(m.constant(-2) * m.abs(x.value)), sum = m.constant(1) + e;
    return {m.tanh(x.value), m.constant(4) * e / (sum * sum) * x.by};
  }
  template <class V>
  constexpr Dual<V> silu(Dual<V> x) const {
    return x * Sigmoid::of(*this, x);
  }
  // x / 2 (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
  template <class V>
  constexpr Dual<V> gelu_tanh(Dual<V> x) const {
    const V linear = m.real(1.5957691216057308), cubic = m.real(0.071354816272600246);
    return x * Sigmoid::of(*this, x * (x * x * cubic + linear));
  }
  // x F(x), F the normal distribution, which is taken from the function: 1 + erf cancels. F' is
  // exp(-x^2 / 2) / sqrt(2 pi).
  template <class V>
  constexpr Dual<V> gelu(Dual<V> x) const {
    const V y = m.gelu(x.value), half = m.real(0.5);
    const V share = m.select(m.abs(x.value) < m.real(1e-30), half, y / x.value);
    const V density = m.exp(-half * x.value * x.value) * m.real(0.39894228040143268);
    return {y, (share + x.value * density) * x.by};
  }
};

// The derivative of a formula of one input; as text, what it is called.
template <class F, class Sigmoid, class M, class V>
constexpr V derivative(const M& m, V x) {
  if constexpr (requires { m.template written_derivative<F>(x); }) {
    return m.template written_derivative<F>(x);
  } else {
    const Duals<M, Sigmoid> duals{m};
    return F::of(duals, duals.dual(x)).by;
  }
}

}  // namespace plumb::formulas
