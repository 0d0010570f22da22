// The rows of the op table, for the code that is made from them when it is compiled.
#pragma once

#include <array>

#include "kernels/ops/table.h"

namespace plumb {

inline constexpr Signature kUnary = signature("out[*] = x[*]");
inline constexpr Signature kBinary = signature("out[*] = a[*], b[*]");
inline constexpr Signature kTernary = signature("out[*] = a[*], b[*], c[*]");
inline constexpr Signature kBackward = signature("d_x[*] = x[*], d_out[*]");
inline constexpr Signature kComparison = signature("out[*]: bool = a[*], b[*]");
inline constexpr Signature kLogical = signature("out[*]: bool = a[*]: same, b[*]: same");
inline constexpr Signature kReduction = signature("out[..] = x[*]");
inline constexpr Signature kReductionToIndex = signature("out[..]: i64 = x[*]");
inline constexpr Signature kReductionToBool = signature("out[..]: bool = x[*]: same");
inline constexpr Signature kResampled = signature("out[B,C,P,Q] = x[B,C,H,W]");
inline constexpr Signature kGemm =
    signature("out[*,M,N] = a[*,M,K], b[*,K,N], c[*,M,N]?, bias[N]?");
inline constexpr Signature kGemmOfTransposedA =
    signature("out[*,M,N] = a[*,K,M], b[*,K,N], c[*,M,N]?, bias[N]?");
inline constexpr Signature kGemmOfTransposedB =
    signature("out[*,M,N] = a[*,M,K], b[*,N,K], c[*,M,N]?, bias[N]?");
inline constexpr Signature kGemmOfBothTransposed =
    signature("out[*,M,N] = a[*,K,M], b[*,N,K], c[*,M,N]?, bias[N]?");
inline constexpr Signature kMove = signature("out[..]: same = x[..]: same");
inline constexpr Signature kWhere = signature("out[*] = condition[*]: bool, a[*], b[*]");

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
