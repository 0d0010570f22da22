// What the elementwise ops compute, written once: out = R(formula(inputs)). Every device reads a
// formula with an arithmetic m of its own over values V of its own: doubles (kernels/oracle),
// vectors of floats (kernels/cpu), the float of a GPU's thread (kernels/gpu), text (formulas.cpp).
//
// m.number() is the number of the call, m.over_number(x) is x / number, m.round(x) is R(x) between
// two steps, m.select(condition, a, b) is a or b; m.reciprocal_root(x) is 1 / sqrt(x); m.tanh(x),
// m.silu(x), m.gelu(x) and m.gelu_tanh(x) are what they are called.
//
// No include and no standard library: kernels/cpu/simd_kernels.cpp says why.
#pragma once

namespace plumb {

// The four of gated_* and of the activations are in the order of Activation.
// clang-format off
#define PLUMB_FOR_EACH_FORMULA(X)                                     \
  X(add) X(mul) X(div) X(add_scalar) X(multiply) X(divide)            \
  X(silu) X(gelu) X(gelu_tanh) X(tanh)                                \
  X(gated_silu) X(gated_gelu) X(gated_gelu_tanh) X(gated_tanh)        \
  X(softcap) X(rsqrt) X(minimum) X(scaled_add)
// clang-format on

namespace formulas {

struct Unary {
  static constexpr int kInputs = 1;
};
struct Binary {
  static constexpr int kInputs = 2;
};

struct add : Binary {
  template <class M, class V>
  static constexpr V of(const M&, V a, V b) {
    return a + b;
  }
};
struct mul : Binary {
  template <class M, class V>
  static constexpr V of(const M&, V a, V b) {
    return a * b;
  }
};
struct div : Binary {
  template <class M, class V>
  static constexpr V of(const M&, V a, V b) {
    return a / b;
  }
};
struct add_scalar : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return x + m.number();
  }
};
struct multiply : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return x * m.number();
  }
};
struct divide : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.over_number(x);
  }
};
struct silu : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.silu(x);
  }
};
struct gelu : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.gelu(x);
  }
};
struct gelu_tanh : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.gelu_tanh(x);
  }
};
struct tanh : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.tanh(x);
  }
};
template <class Function>
struct Gated : Binary {
  template <class M, class V>
  static constexpr V of(const M& m, V gate, V up) {
    return m.round(Function::of(m, gate)) * up;
  }
};
struct gated_silu : Gated<silu> {};
struct gated_gelu : Gated<gelu> {};
struct gated_gelu_tanh : Gated<gelu_tanh> {};
struct gated_tanh : Gated<tanh> {};
struct softcap : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.round(m.tanh(m.round(m.over_number(x)))) * m.number();
  }
};
struct rsqrt : Unary {
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    return m.reciprocal_root(x);
  }
};
struct minimum : Binary {  // NaN where either is: the sum, where neither comes first
  template <class M, class V>
  static constexpr V of(const M& m, V a, V b) {
    return m.select(a < b, a, m.select(b <= a, b, a + b));
  }
};
struct scaled_add : Binary {
  template <class M, class V>
  static constexpr V of(const M& m, V x, V residual) {
    return m.round(x * m.number()) + residual;
  }
};

}  // namespace formulas

enum class Formula {
#define PLUMB_ENUMERATOR(name) name,
  PLUMB_FOR_EACH_FORMULA(PLUMB_ENUMERATOR)
#undef PLUMB_ENUMERATOR
};

// All of them, behind a void: a list cannot begin with a comma.
template <class First, class... F>
struct FormulaList {
  static constexpr int kCount = sizeof...(F);
};
#define PLUMB_TYPE(name) , formulas::name
using Formulas = FormulaList<void PLUMB_FOR_EACH_FORMULA(PLUMB_TYPE)>;
#undef PLUMB_TYPE
inline constexpr int kFormulas = Formulas::kCount;

// visit.template operator()<formulas::add>() for Formula::add.
template <class Visit>
auto with_formula(Formula formula, Visit visit) {
  switch (formula) {
#define PLUMB_CASE(name) \
  case Formula::name: return visit.template operator()<formulas::name>();
    PLUMB_FOR_EACH_FORMULA(PLUMB_CASE)
#undef PLUMB_CASE
  }
  return visit.template operator()<formulas::add>();
}

}  // namespace plumb
