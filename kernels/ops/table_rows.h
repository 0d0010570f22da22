// The rows of the op table, for the code that is made from them when it is compiled.
#pragma once

#include <array>

#include "kernels/ops/signatures.h"
#include "kernels/ops/table.h"

namespace plumb {

inline constexpr std::array<OpRow, kOpCount> kTable = {{
#define PLUMB_OP(op, ...) {.id = OpId::op, .name = #op, __VA_ARGS__},
#include "kernels/ops/op_list.h"
}};

// Each letter of a row is one of its operands'.
consteval bool letters_are_known() {
  for (const OpRow& row : kTable) {
    for (const char letter : row.sums) row.operands.place_of(letter);
    for (const char letter : row.per) row.operands.place_of(letter);
  }
  return true;
}
static_assert(letters_are_known());

}  // namespace plumb
