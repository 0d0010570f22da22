// The arithmetic of formulas and reductions on whole numbers: in 64 bits, wrapping, of which a
// narrower dtype keeps the lowest. Read by every device.
#pragma once

#include <array>

#include "kernels/ops/signatures.h"
#include "kernels/ops/table.h"

namespace plumb {

struct Whole {
  int64_t i;
};

// Unsigned, whose overflow is defined.
// clang-format off
constexpr uint64_t bits_of(Whole x) { return static_cast<uint64_t>(x.i); }
constexpr Whole whole_of(uint64_t bits) { return {static_cast<int64_t>(bits)}; }
constexpr Whole operator+(Whole a, Whole b) { return whole_of(bits_of(a) + bits_of(b)); }
constexpr Whole operator-(Whole a, Whole b) { return whole_of(bits_of(a) - bits_of(b)); }
constexpr Whole operator*(Whole a, Whole b) { return whole_of(bits_of(a) * bits_of(b)); }
constexpr Whole operator-(Whole x) { return whole_of(0 - bits_of(x)); }
constexpr bool operator==(Whole a, Whole b) { return a.i == b.i; }
constexpr bool operator<(Whole a, Whole b) { return a.i < b.i; }
constexpr bool operator<=(Whole a, Whole b) { return a.i <= b.i; }
// clang-format on

struct Wholes {
  // The largest of all and, negated, the least.
  struct Extreme {
    constexpr operator Whole() const { return {INT64_MAX}; }
    constexpr Whole operator-() const { return {INT64_MIN}; }
  };
  constexpr Extreme infinity() const { return {}; }
  constexpr Whole constant(int c) const { return {c}; }
  constexpr Whole abs(Whole x) const { return x.i < 0 ? -x : x; }
  template <class V>
  constexpr V select(bool chosen, V a, V b) const {
    return chosen ? a : b;
  }
};

namespace wholes_detail {

struct Ignored {
  constexpr Ignored() = default;
  template <class T>
  constexpr Ignored(const T&) {}
};
// What is read here of the op table, in its order: nvcc takes no whole row for a constant.
struct Row {
  OpId id;
  Ignored name = {}, operands = {};
  DTypes dtypes = kFloats;
  Ignored transposed = {}, sums = {}, flops = {}, per = {}, per_input = {}, more = {}, of_bias = {},
          bits = {}, number = {}, along_axis = {}, in_place = {};
  std::optional<Formula> formula = {};
  std::optional<Reduction> reduction = {};
};
inline constexpr std::array<Row, kOpCount> kRows = {{
#define PLUMB_OP(op, ...) {.id = OpId::op, .name = #op, __VA_ARGS__},
#include "kernels/ops/op_list.h"
}};

}  // namespace wholes_detail

// Whether an op's row lets the formula, or the reduction, have whole numbers.
consteval bool takes_wholes(Formula formula) {
  for (const auto& row : wholes_detail::kRows) {
    if (row.formula == formula && row.dtypes.has(DType::i64)) return true;
  }
  return false;
}
consteval bool takes_wholes(Reduction reduction) {
  for (const auto& row : wholes_detail::kRows) {
    if (row.reduction == reduction && row.dtypes.has(DType::i64)) return true;
  }
  return false;
}

// with_formula() and with_reduction() of those alone.
template <class Visit>
void with_whole_formula(Formula formula, Visit visit) {
  switch (formula) {
#define PLUMB_CASE(name)                                                                    \
  case Formula::name:                                                                       \
    if constexpr (takes_wholes(Formula::name)) visit.template operator()<formulas::name>(); \
    return;
    PLUMB_FOR_EACH_FORMULA(PLUMB_CASE)
#undef PLUMB_CASE
  }
}
template <class Visit>
void with_whole_reduction(Reduction reduction, Visit visit) {
  switch (reduction) {
#define PLUMB_CASE(name)                                                                        \
  case Reduction::name:                                                                         \
    if constexpr (takes_wholes(Reduction::name)) visit.template operator()<reductions::name>(); \
    return;
    PLUMB_FOR_EACH_REDUCTION(PLUMB_CASE)
#undef PLUMB_CASE
  }
}

}  // namespace plumb
