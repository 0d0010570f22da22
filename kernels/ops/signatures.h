// The operands that several ops have.
#pragma once

#include "kernels/ops/signature.h"

namespace plumb {

inline constexpr Signature kUnary = signature("out[*] = x[*]");
inline constexpr Signature kBinary = signature("out[*] = a[*], b[*]");
inline constexpr Signature kTernary = signature("out[*] = a[*], b[*], c[*]");
inline constexpr Signature kBackward = signature("d_x[*] = x[*], d_out[*]");
inline constexpr Signature kComparison = signature("out[*]: bool = a[*], b[*]");
inline constexpr Signature kLogical = signature("out[*]: bool = a[*]: same, b[*]: same");
inline constexpr Signature kReduction = signature("out[..] = x[*]");
inline constexpr Signature kTotal = signature("out[..]: total = x[*]");
inline constexpr Signature kReductionToIndex = signature("out[..]: i64 = x[*]");
inline constexpr Signature kReductionToBool = signature("out[..]: bool = x[*]: same");
inline constexpr Signature kResampled = signature("out[B,C,P,Q] = x[B,C,H,W]");
inline constexpr Signature kGemm =
    signature("out[*,M,N]: sums = a[*,M,K], b[*,K,N], c[*,M,N]: sums?, bias[N]: sums?");
inline constexpr Signature kGemmOfTransposedA =
    signature("out[*,M,N]: sums = a[*,K,M], b[*,K,N], c[*,M,N]: sums?, bias[N]: sums?");
inline constexpr Signature kGemmOfTransposedB =
    signature("out[*,M,N]: sums = a[*,M,K], b[*,N,K], c[*,M,N]: sums?, bias[N]: sums?");
inline constexpr Signature kGemmOfBothTransposed =
    signature("out[*,M,N]: sums = a[*,K,M], b[*,N,K], c[*,M,N]: sums?, bias[N]: sums?");
inline constexpr Signature kMove = signature("out[..]: same = x[..]: same");
inline constexpr Signature kWhere = signature("out[*] = condition[*]: bool, a[*], b[*]");

}  // namespace plumb
