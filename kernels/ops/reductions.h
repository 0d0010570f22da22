// What the reductions compute, written once: from start, a step for each element x, finish; parts
// of the elements are combined. Every device reads them with the arithmetic m that it reads
// formulas with (kernels/ops/formulas.h), which has m.infinity(), too.
//
// A state is a value and, of some, one more number: an index, or a value. s is the state's value, a
// and b are those of two states, count is how many elements there are.
#pragma once

#include "kernels/ops/formulas.h"

namespace plumb {

// clang-format off
#define PLUMB_FOR_EACH_REDUCTION(X)                                   \
  X(sum) X(mean) X(prod) X(min) X(max) X(argmin) X(argmax)            \
  X(any) X(all) X(log_sum_exp) X(norm)
// clang-format on

namespace reductions {

enum class Beside { nothing, index, value };

template <class V, class B>
struct State {
  V value;
  B beside;  // 0 at the start
};

struct Plain {
  static constexpr Beside kBeside = Beside::nothing;
  static constexpr bool kTakesBools = false;
  static constexpr bool kOfNothing = true;  // of no elements, it is what it starts from
};

// Of the value alone.
#define PLUMB_REDUCTION(name, Base, start_value, step_value, combined_value, finished_value)   \
  struct name : Base {                                                                         \
    template <class V, class M>                                                                \
    static constexpr V start([[maybe_unused]] const M& m) {                                    \
      return start_value;                                                                      \
    }                                                                                          \
    template <class M, class V, class B, class I>                                              \
    static constexpr State<V, B> step([[maybe_unused]] const M& m, const State<V, B>& state,   \
                                      const V& x, const I&) {                                  \
      const V& s = state.value;                                                                \
      return {step_value, state.beside};                                                       \
    }                                                                                          \
    template <class M, class V, class B>                                                       \
    static constexpr State<V, B> combine([[maybe_unused]] const M& m, const State<V, B>& of_a, \
                                         const State<V, B>& of_b) {                            \
      const V &a = of_a.value, &b = of_b.value;                                                \
      return {combined_value, of_a.beside};                                                    \
    }                                                                                          \
    template <class M, class V, class B>                                                       \
    static constexpr V finish([[maybe_unused]] const M& m, const State<V, B>& state,           \
                              [[maybe_unused]] const V& count) {                               \
      const V& s = state.value;                                                                \
      return finished_value;                                                                   \
    }                                                                                          \
  };

struct OfSome : Plain {
  static constexpr bool kOfNothing = false;
};
struct OfTruth : Plain {
  static constexpr bool kTakesBools = true;
};

PLUMB_REDUCTION(sum, Plain, m.constant(0), s + x, a + b, s)
PLUMB_REDUCTION(mean, Plain, m.constant(0), s + x, a + b, s / count)
PLUMB_REDUCTION(prod, Plain, m.constant(1), (s * x), (a * b), s)
PLUMB_REDUCTION(norm, Plain, m.constant(0), m.multiply_add(x, x, s), a + b, m.sqrt(s))
// NaN where there is one.
PLUMB_REDUCTION(min, OfSome, m.infinity(), formulas::minimum::of(m, s, x),
                formulas::minimum::of(m, a, b), s)
PLUMB_REDUCTION(max, OfSome, -m.infinity(), formulas::maximum::of(m, s, x),
                formulas::maximum::of(m, a, b), s)
// Any value but 0 is true, NaN too.
PLUMB_REDUCTION(any, OfTruth, m.constant(0), m.select(x == m.constant(0), s, m.constant(1)),
                formulas::logical_or::of(m, a, b), s)
PLUMB_REDUCTION(all, OfTruth, m.constant(1), m.select(x == m.constant(0), m.constant(0), s),
                formulas::logical_and::of(m, a, b), s)

// The first NaN, or else the first of the extreme elements. `in_order`: that a is at least as
// extreme as b.
#define PLUMB_ARG_REDUCTION(name, start_value, in_order)                                           \
  struct name : OfSome {                                                                           \
    static constexpr Beside kBeside = Beside::index;                                               \
    template <class V, class M>                                                                    \
    static constexpr V start(const M& m) {                                                         \
      return start_value;                                                                          \
    }                                                                                              \
    template <class M, class V, class I>                                                           \
    static constexpr State<V, I> step(const M& m, const State<V, I>& s, const V& x, const I& at) { \
      const auto better = [&](const auto& kept, const auto& taken) {                               \
        return m.select(in_order(s.value, x), kept, m.select(s.value == s.value, taken, kept));    \
      };                                                                                           \
      return {better(s.value, x), better(s.beside, at)};                                           \
    }                                                                                              \
    template <class M, class V, class I>                                                           \
    static constexpr State<V, I> combine(const M& m, const State<V, I>& a, const State<V, I>& b) { \
      const auto better = [&](const auto& kept, const auto& taken, const auto& even) {             \
        return m.select(                                                                           \
            in_order(a.value, b.value), m.select(in_order(b.value, a.value), even, kept),          \
            m.select(a.value == a.value, taken, m.select(b.value == b.value, kept, even)));        \
      };                                                                                           \
      const I first = m.select(a.beside < b.beside, a.beside, b.beside);                           \
      return {better(a.value, b.value, a.value), better(a.beside, b.beside, first)};               \
    }                                                                                              \
    template <class M, class V, class I>                                                           \
    static constexpr I finish(const M&, const State<V, I>& s, const V&) {                          \
      return s.beside;                                                                             \
    }                                                                                              \
  };
#define PLUMB_IS_LARGER(a, b) (b <= a)
#define PLUMB_IS_SMALLER(a, b) (a <= b)
PLUMB_ARG_REDUCTION(argmin, m.infinity(), PLUMB_IS_SMALLER)
PLUMB_ARG_REDUCTION(argmax, -m.infinity(), PLUMB_IS_LARGER)

// The largest element, and with it the sum of exp(x - largest): one pass, without overflow. Of
// equal infinities the difference, NaN, is not looked at.
struct log_sum_exp : Plain {
  static constexpr Beside kBeside = Beside::value;
  template <class V, class M>
  static constexpr V start(const M& m) {
    return -m.infinity();
  }
  template <class M, class V, class I>
  static constexpr State<V, V> step(const M& m, const State<V, V>& s, const V& x, const I&) {
    return combine(m, s, State<V, V>{x, m.constant(1)});
  }
  template <class M, class V>
  static constexpr State<V, V> combine(const M& m, const State<V, V>& a, const State<V, V>& b) {
    const V e = m.exp(-m.abs(a.value - b.value));
    return {formulas::maximum::of(m, a.value, b.value),
            m.select(a.value < b.value, a.beside * e + b.beside,
                     a.beside + m.select(a.value == b.value, b.beside, b.beside * e))};
  }
  template <class M, class V>
  static constexpr V finish(const M& m, const State<V, V>& s, const V&) {
    return m.log(s.beside) + s.value;
  }
};

#undef PLUMB_REDUCTION
#undef PLUMB_ARG_REDUCTION
#undef PLUMB_IS_LARGER
#undef PLUMB_IS_SMALLER

}  // namespace reductions

enum class Reduction {
#define PLUMB_ENUMERATOR(name) name,
  PLUMB_FOR_EACH_REDUCTION(PLUMB_ENUMERATOR)
#undef PLUMB_ENUMERATOR
};

#define PLUMB_TYPE(name) , reductions::name
using Reductions = FormulaList<void PLUMB_FOR_EACH_REDUCTION(PLUMB_TYPE)>;
#undef PLUMB_TYPE
inline constexpr int kReductions = Reductions::kCount;

// visit.template operator()<reductions::sum>() for Reduction::sum.
template <class Visit>
auto with_reduction(Reduction reduction, Visit visit) {
  switch (reduction) {
#define PLUMB_CASE(name) \
  case Reduction::name: return visit.template operator()<reductions::name>();
    PLUMB_FOR_EACH_REDUCTION(PLUMB_CASE)
#undef PLUMB_CASE
  }
  return visit.template operator()<reductions::sum>();
}

}  // namespace plumb
