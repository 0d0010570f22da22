// What the elementwise ops compute, written once: out = R(formula(inputs)). Every device reads a
// formula with an arithmetic m of its own over values V of its own: doubles (kernels/oracle),
// vectors of floats (kernels/cpu), the float of a GPU's thread (kernels/gpu), text (formulas.cpp).
//
// m.number() is the number of the call, m.shift() a second one, m.constant(1) is 1, m.real(0.5)
// 0.5, m.over_number(x) is x / number, m.round(x) is R(x) between two steps, m.select(condition, a,
// b) is a or b; m.nearest(x) is the integer next to x, the even one of two; m.reciprocal_root(x) is
// 1 / sqrt(x); m.multiply_add(a, b, c) is a b + c with one rounding; the others are what they are
// called.
//
// kUlps: how far a float32 kernel of the CPU may be from the value, in units of the last place;
// `harness support --ops` measures it.
//
// No standard library: kernels/cpu/simd_kernels.cpp says why.
#pragma once

#include "kernels/ops/duals.h"

namespace plumb {

// The four of a function each are in the order of Activation.
// clang-format off
#define PLUMB_FOR_EACH_FORMULA(X)                                     \
  X(add) X(mul) X(div) X(add_scalar) X(multiply) X(divide)            \
  X(silu) X(gelu) X(gelu_tanh) X(tanh)                                \
  X(gated_silu) X(gated_gelu) X(gated_gelu_tanh) X(gated_tanh)        \
  X(silu_backward) X(gelu_backward) X(gelu_tanh_backward)             \
  X(tanh_backward)                                                    \
  X(gate_backward_silu) X(gate_backward_gelu)                         \
  X(gate_backward_gelu_tanh) X(gate_backward_tanh)                    \
  X(up_backward_silu) X(up_backward_gelu) X(up_backward_gelu_tanh)    \
  X(up_backward_tanh)                                                 \
  X(softcap) X(rsqrt) X(minimum) X(scaled_add)                        \
  X(neg) X(reciprocal) X(square) X(abs) X(sqrt) X(exp) X(log)         \
  X(expm1) X(log1p) X(sin) X(cos) X(erf) X(sigmoid) X(softplus)       \
  X(relu) X(leaky_relu) X(elu) X(floor) X(ceil) X(round) X(sign)      \
  X(sub) X(maximum) X(pow)                                            \
  X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(logical_and) X(logical_or)    \
  X(affine) X(multiply_add) X(where)                                  \
  X(softcap_backward) X(sigmoid_backward) X(softplus_backward)        \
  X(relu_backward)
// clang-format on

namespace formulas {

inline constexpr double kOneRounding = 0.5, kOneFunction = 1, kComposed = 4;  // kUlps
// Of derivatives, which have zeros and tails that are products of small numbers: not measured.
inline constexpr double kUnmeasured = -1;

template <int Inputs, bool GivesBool = false>
struct Of {
  static constexpr int kInputs = Inputs;
  static constexpr bool kGivesBool = GivesBool;  // 1 or 0, stored as bool
  static constexpr bool kTakesBools = false;     // inputs of bool, too
  static constexpr bool kHasCondition = false;   // the first input is of bool, whatever the others
};

// A formula that is one expression of m and of x, of a and b, or of a, b and c.
#define PLUMB_UNARY(name, ulps, expression)                   \
  struct name : Of<1> {                                       \
    static constexpr double kUlps = ulps;                     \
    template <class M, class V>                               \
    static constexpr V of([[maybe_unused]] const M& m, V x) { \
      return expression;                                      \
    }                                                         \
  };
#define PLUMB_BINARY(name, ulps, expression)                       \
  struct name : Of<2> {                                            \
    static constexpr double kUlps = ulps;                          \
    template <class M, class V>                                    \
    static constexpr V of([[maybe_unused]] const M& m, V a, V b) { \
      return expression;                                           \
    }                                                              \
  };
#define PLUMB_TERNARY(name, ulps, expression)                           \
  struct name : Of<3> {                                                 \
    static constexpr double kUlps = ulps;                               \
    template <class M, class V>                                         \
    static constexpr V of([[maybe_unused]] const M& m, V a, V b, V c) { \
      return expression;                                                \
    }                                                                   \
  };
#define PLUMB_COMPARISON(name, condition, where_true, where_false)                 \
  struct name : Of<2, true> {                                                      \
    static constexpr double kUlps = 0;                                             \
    template <class M, class V>                                                    \
    static constexpr V of(const M& m, V a, V b) {                                  \
      return m.select(condition, m.constant(where_true), m.constant(where_false)); \
    }                                                                              \
  };

PLUMB_BINARY(add, kOneRounding, a + b)
PLUMB_BINARY(sub, kOneRounding, a - b)
PLUMB_BINARY(mul, kOneRounding, (a * b))
PLUMB_BINARY(div, kOneRounding, a / b)
PLUMB_BINARY(pow, kComposed, m.pow(a, b))
// NaN where either is: the sum, where neither comes first.
PLUMB_BINARY(minimum, kOneRounding, m.select(a < b, a, m.select(b <= a, b, a + b)))
PLUMB_BINARY(maximum, kOneRounding, m.select(b < a, a, m.select(a <= b, b, a + b)))

PLUMB_COMPARISON(eq, a == b, 1, 0)
PLUMB_COMPARISON(ne, a == b, 0, 1)  // NaN differs from everything
PLUMB_COMPARISON(lt, a < b, 1, 0)
PLUMB_COMPARISON(le, a <= b, 1, 0)
PLUMB_COMPARISON(gt, b < a, 1, 0)
PLUMB_COMPARISON(ge, b <= a, 1, 0)

// Any value but 0 is true, NaN too.
struct Logical : Of<2, true> {
  static constexpr double kUlps = 0;
  static constexpr bool kTakesBools = true;
  template <class M, class V>
  static constexpr V truth(const M& m, V x) {
    return m.select(x == m.constant(0), m.constant(0), m.constant(1));
  }
};
struct logical_and : Logical {
  template <class M, class V>
  static constexpr V of(const M& m, V a, V b) {
    return m.select(a == m.constant(0), m.constant(0), truth(m, b));
  }
};
struct logical_or : Logical {
  template <class M, class V>
  static constexpr V of(const M& m, V a, V b) {
    return m.select(a == m.constant(0), truth(m, b), m.constant(1));
  }
};

PLUMB_UNARY(affine, kOneRounding, m.multiply_add(x, m.number(), m.shift()))
PLUMB_TERNARY(multiply_add, kOneRounding, m.multiply_add(a, b, c))
struct where : Of<3> {
  static constexpr double kUlps = 0;
  static constexpr bool kHasCondition = true;
  template <class M, class V>
  static constexpr V of(const M& m, V condition, V a, V b) {
    return m.select(condition == m.constant(0), b, a);
  }
};

PLUMB_UNARY(add_scalar, kOneRounding, x + m.number())
PLUMB_UNARY(multiply, kOneRounding, (x * m.number()))
PLUMB_UNARY(divide, kOneRounding, m.over_number(x))
PLUMB_UNARY(neg, kOneRounding, -x)
PLUMB_UNARY(reciprocal, kOneRounding, m.constant(1) / x)
PLUMB_UNARY(square, kOneRounding, (x * x))
PLUMB_UNARY(abs, kOneRounding, m.abs(x))
PLUMB_UNARY(floor, kOneRounding, m.floor(x))
PLUMB_UNARY(ceil, kOneRounding, -m.floor(-x))
PLUMB_UNARY(round, kOneRounding, m.nearest(x))
// 0 of NaN, as torch does.
PLUMB_UNARY(sign, kOneRounding,
            m.select(m.constant(0) < x, m.constant(1),
                     m.select(x < m.constant(0), m.constant(-1), m.constant(0))))
PLUMB_UNARY(relu, kOneRounding, m.select(x < m.constant(0), m.constant(0), x))
PLUMB_UNARY(leaky_relu, kOneRounding, m.select(x < m.constant(0), (x * m.number()), x))

PLUMB_UNARY(sqrt, kOneFunction, m.sqrt(x))
PLUMB_UNARY(rsqrt, kOneFunction, m.reciprocal_root(x))
PLUMB_UNARY(exp, kOneFunction, m.exp(x))
PLUMB_UNARY(expm1, kOneFunction, m.expm1(x))
PLUMB_UNARY(log, kOneFunction, m.log(x))
PLUMB_UNARY(log1p, kOneFunction, m.log1p(x))
PLUMB_UNARY(sin, kOneFunction, m.sin(x))
PLUMB_UNARY(cos, kOneFunction, m.cos(x))
PLUMB_UNARY(erf, kOneFunction, m.erf(x))
PLUMB_UNARY(tanh, kOneFunction, m.tanh(x))

PLUMB_UNARY(silu, kComposed, m.silu(x))
PLUMB_UNARY(gelu, kComposed, m.gelu(x))
PLUMB_UNARY(gelu_tanh, kComposed, m.gelu_tanh(x))
PLUMB_UNARY(elu, kComposed, m.select(x < m.constant(0), m.expm1(x) * m.number(), x))
PLUMB_UNARY(softplus, kComposed,
            m.select(x < m.constant(0), m.constant(0), x) + m.log1p(m.exp(-m.abs(x))))
struct sigmoid : Of<1> {  // without overflow for either sign
  static constexpr double kUlps = kComposed;
  template <class M, class V>
  static constexpr V of(const M& m, V x) {
    const V e = m.exp(-m.abs(x));
    return m.select(x < m.constant(0), e, m.constant(1)) / (m.constant(1) + e);
  }
};

// Of several steps, each rounded.
template <class Function>
struct Gated : Of<2> {
  static constexpr double kUlps = kComposed;
  template <class M, class V>
  static constexpr V of(const M& m, V gate, V up) {
    return m.round(Function::of(m, gate)) * up;
  }
};
struct gated_silu : Gated<silu> {};
struct gated_gelu : Gated<gelu> {};
struct gated_gelu_tanh : Gated<gelu_tanh> {};
struct gated_tanh : Gated<tanh> {};
PLUMB_UNARY(softcap, kComposed, m.round(m.tanh(m.round(m.over_number(x)))) * m.number())
// Of x and the residual.
PLUMB_BINARY(scaled_add, kComposed, m.round(a* m.number()) + b)

// Backward, each rounded once: the derivative of a formula of x, read from it (duals.h), times the
// gradient of its result.
template <class Function>
struct Backward : Of<2> {
  static constexpr double kUlps = kUnmeasured;
  template <class M, class V>
  static constexpr V of(const M& m, V x, V d_out) {
    return derivative<Function, sigmoid>(m, x) * d_out;
  }
};
struct silu_backward : Backward<silu> {};
struct gelu_backward : Backward<gelu> {};
struct gelu_tanh_backward : Backward<gelu_tanh> {};
struct tanh_backward : Backward<tanh> {};
struct softcap_backward : Backward<softcap> {};
struct sigmoid_backward : Backward<sigmoid> {};
struct softplus_backward : Backward<softplus> {};
// 0 at 0, as torch has it; the formula's own choice there is 1.
PLUMB_BINARY(relu_backward, kOneRounding, m.select(a <= m.constant(0), m.constant(0), b))

// Of f(gate) up, by the gate and by up.
template <class Function>
struct GateBackward : Of<3> {
  static constexpr double kUlps = kUnmeasured;
  template <class M, class V>
  static constexpr V of(const M& m, V gate, V up, V d_out) {
    return derivative<Function, sigmoid>(m, gate) * up * d_out;
  }
};
struct gate_backward_silu : GateBackward<silu> {};
struct gate_backward_gelu : GateBackward<gelu> {};
struct gate_backward_gelu_tanh : GateBackward<gelu_tanh> {};
struct gate_backward_tanh : GateBackward<tanh> {};
template <class Function>
struct UpBackward : Of<2> {
  static constexpr double kUlps = kUnmeasured;
  template <class M, class V>
  static constexpr V of(const M& m, V gate, V d_out) {
    return Function::of(m, gate) * d_out;
  }
};
struct up_backward_silu : UpBackward<silu> {};
struct up_backward_gelu : UpBackward<gelu> {};
struct up_backward_gelu_tanh : UpBackward<gelu_tanh> {};
struct up_backward_tanh : UpBackward<tanh> {};

#undef PLUMB_UNARY
#undef PLUMB_BINARY
#undef PLUMB_TERNARY
#undef PLUMB_COMPARISON

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
