// The names of the ops of ops.h, and sets of them.
#pragma once

#include <bitset>
#include <string_view>

namespace plumb {

// Each op once; those from gated_activation on are fused: they have a default composition.
// clang-format off
#define PLUMB_FOR_EACH_OP(X) \
  X(embedding) X(rms_norm) X(layer_norm) X(linear) X(activation) X(add) X(mul) X(scale) \
  X(softmax) X(matmul) X(masked_add) X(repeat_heads) X(rotary_table) X(rotary) X(causal_mask) \
  X(copy) X(cast) X(mask_rows) X(causal_conv1d) X(ssd_scan) X(gated_rms_norm) X(div) \
  X(add_scalar) X(transpose) X(mask_fill) X(position_ids) X(gated_activation) X(softcap) \
  X(add_rms_norm) X(sdpa)
// clang-format on

enum class OpId {
#define PLUMB_ENUMERATOR(name) name,
  PLUMB_FOR_EACH_OP(PLUMB_ENUMERATOR)
#undef PLUMB_ENUMERATOR
};
inline constexpr int kOpCount = static_cast<int>(OpId::sdpa) + 1;
using OpSet = std::bitset<kOpCount>;

std::string_view name_of(OpId op);
bool is_fused(OpId op);  // has a default composition

}  // namespace plumb
