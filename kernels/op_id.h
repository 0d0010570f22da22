// The names of the ops of ops.h, and sets of them.
#pragma once

#include <bitset>
#include <string_view>

namespace plumb {

enum class OpId {
  embedding,
  rms_norm,
  layer_norm,
  linear,
  activation,
  add,
  mul,
  scale,
  softmax,
  matmul,
  masked_add,
  repeat_heads,
  rotary_table,
  rotary,
  causal_mask,
  copy,
  cast,
  mask_rows,
  causal_conv1d,
  ssd_scan,
  gated_rms_norm,
  div,
  add_scalar,
  transpose,
  mask_fill,
  position_ids,
  gated_activation,
  softcap,
  add_rms_norm,
  sdpa,  // fused: these have a default composition
};
inline constexpr int kOpCount = static_cast<int>(OpId::sdpa) + 1;
using OpSet = std::bitset<kOpCount>;

std::string_view name_of(OpId op);
bool is_fused(OpId op);  // has a default composition

}  // namespace plumb
