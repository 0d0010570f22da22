// The rows of the op table, for the code that is made from them when it is compiled.
#pragma once

#include <array>

#include "kernels/ops/table.h"

namespace plumb {

inline constexpr Signature kUnary = signature("out[*] = x[*]");
inline constexpr Signature kBinary = signature("out[*] = a[*], b[*]");

// clang-format off
inline constexpr std::array<OpRow, kOpCount> kTable = {{
    {.id = OpId::embedding, .operands = signature("out[*,C] = ids[*]: i64, weight[V,C]: narrow")},
    {.id = OpId::rms_norm, .operands = signature("out[*,C] = x[*,C], weight[C]"), .sums = "C",
     .flops = 4, .bits = OpBits::scaled},  // square, sum, times the norm, times the weight
    {.id = OpId::layer_norm, .operands = signature("out[*,C] = x[*,C], weight[C], bias[C]?"), .sums = "CC",
     .flops = 7, .bits = OpBits::scaled, .number = NumberField::eps},  // sum, minus mean, square, sum, norm, weight, bias
    {.id = OpId::linear, .operands = signature("out[*,N] = x[*,K], weight[N,K]: narrow, bias[N]?"), .sums = "K",
     .flops = 2, .per = 'K', .of_bias = 1},
    {.id = OpId::activation, .operands = kUnary, .flops = 4},  // silu's negation, exp, sum, quotient
    {.id = OpId::add, .operands = kBinary, .flops = 1},
    {.id = OpId::mul, .operands = kBinary, .flops = 1},
    {.id = OpId::scale, .operands = kUnary, .flops = 1},
    {.id = OpId::softmax, .operands = signature("out[*,C] = x[*,C]"), .sums = "C",
     .flops = 5},  // maximum, minus it, exp, sum, quotient
    {.id = OpId::matmul, .operands = signature("out[B,H,M,N] = a[B,H,M,K], b[B,G,K,N]; G divides H"),
     .transposed = signature("out[B,H,M,N] = a[B,H,M,K], b[B,G,N,K]; G divides H"), .sums = "K",
     .flops = 2, .per = 'K'},
    {.id = OpId::masked_add, .operands = signature("out[B,H,T,S] = x[B,H,T,S], mask[1|B,1|H,T,S]"), .flops = 1},
    {.id = OpId::repeat_heads, .operands = signature("out[B,H,S,D] = x[B,G,S,D]; G divides H")},
    {.id = OpId::rotary_table,
     .operands = signature("cos[B,T,2F], sin[B,T,2F] = positions[B,T]: i64, inv_freq[F]: wide"),
     .flops = 3, .number = NumberField::attention_scaling},
    {.id = OpId::rotary, .operands = signature("out[B,H,T,D] = x[B,H,T,D], cos[1|B,T,R], sin[1|B,T,R]"), .flops = 3},
    {.id = OpId::causal_mask, .operands = signature("out[*]: any = key_valid[B,S]: bool?, explicit_mask[*]: any?")},
    {.id = OpId::copy, .operands = signature("out[*]: same = x[*]: same"), .bits = OpBits::exact},
    {.id = OpId::cast, .operands = signature("out[*]: floating = x[*]: floating")},
    {.id = OpId::mask_rows, .operands = signature("out[B,T,C] = x[B,T,C], valid[B,T]: bool")},
    {.id = OpId::causal_conv1d,
     .operands = signature("out[B,T,C], state_after[B,C,W]? = x[B,T,C], weight[C,1,W], bias[C]?, state_before[B,C,W]?"),
     .sums = "W", .flops = 2, .per = 'W', .more = 4},  // and silu
    {.id = OpId::ssd_scan,
     .operands = signature("y[B,T,H,P]: any, state_after[B,H,P,N]: wide? = x[B,T,H,P], dt[B,T,H], b[B,T,G,N], "
                           "c[B,T,G,N], a_log[H], d[H], dt_bias[H], state[B,H,P,N]: wide?; G divides H"),
     .flops = 5, .per = 'N'},  // decay, input, output
    {.id = OpId::gated_rms_norm,
     .operands = signature("out[*,C] = x[*,C], gate[*,C]: floating, weight[C]: floating"),
     .flops = 9},  // silu, its product, and the norm
    {.id = OpId::div, .operands = kBinary, .flops = 1},
    {.id = OpId::add_scalar, .operands = kUnary, .flops = 1},
    {.id = OpId::transpose, .operands = signature("out[*,N,M] = x[*,M,N]")},
    {.id = OpId::mask_fill, .operands = signature("out[*] = x[*], mask[*]: bool"), .bits = OpBits::exact},
    {.id = OpId::position_ids, .operands = signature("out[B,T]: i64 = valid[B,T]: bool?")},
    {.id = OpId::gated_activation, .operands = signature("out[*] = gate[*], up[*]"), .flops = 5},  // and the product
    {.id = OpId::softcap, .operands = kUnary, .flops = 3, .number = NumberField::cap},
    {.id = OpId::add_rms_norm,
     .operands = signature("sum[*,C], out[*,C] = x[*,C], residual[*,C], weight[C]"), .sums = "C",
     .flops = 5, .bits = OpBits::scaled},  // the residual too
    {.id = OpId::sdpa,
     .operands = signature("out[B,T,H,E] = q[B,H,T,D], k[B,G,S,D], v[B,G,S,E], key_valid[B,S]: bool?, "
                           "explicit_mask[*]: any?; G divides H"),
     .sums = "DSS"},
}};
// clang-format on

// In the order of OpId, each letter of a row one of its operands'.
consteval bool is_in_order() {
  for (int i = 0; i < kOpCount; ++i) {
    const OpRow& row = kTable[static_cast<size_t>(i)];
    if (row.id != static_cast<OpId>(i)) return false;
    for (const char letter : row.sums) row.operands.place_of(letter);
    if (row.per) row.operands.place_of(row.per);
  }
  return true;
}
static_assert(is_in_order());

}  // namespace plumb
