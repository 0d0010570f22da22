// Self-attention of a decoder layer: projections, rotary, cache, sdpa, output projection.
#pragma once

#include <optional>

#include "blocks/kv_cache.h"
#include "blocks/linear.h"
#include "blocks/low_rank_adapter.h"
#include "blocks/sdpa.h"
#include "kernels/slots.h"

namespace plumb {

// Keys and values of one layer before and after a call. `before` is undefined while the cache is
// empty, `after` when it is not asked for.
struct KvState {
  Tensor keys_before, values_before;
  Tensor keys_after, values_after;
  // In place of those: slots whose first `query_offset` hold what is stored, the next T being
  // written. All are seen, as far as the mask allows.
  Tensor keys = {}, values = {};  // [B, Hkv, P + T or more, D]
  // Or slots for Ops::store_tokens, of a sequence `past` long. A step is one token that sees what
  // is in them; others see `keys`, if there are, of these slots, else the keys before and their
  // own.
  Tensor key_slots = {}, value_slots = {};
  std::optional<int64_t> window = {};  // of these slots
  Position past = {};
  bool step = false;
  // Slots that the first query and the first key are further along than the mask says.
  int64_t query_offset = 0, key_offset = 0;
  // Which tokens of the sequence, from its first on, are no padding: bool [B, P + T or more], or
  // undefined: all.
  Tensor token_valid = {};
};

// q, k, v projections, rotary, cache, sdpa, output projection: LlamaAttention, Gemma2Attention,
// Zamba2Attention. hidden [B, T, C], cos, sin [B|1, T, r], undefined without rotary -> out
// [B, T, C].
struct Attention {
  Linear q_proj, k_proj, v_proj, o_proj;
  std::optional<LowRankAdapter> q_adapter, k_adapter, v_adapter;  // added to the projections
  bool rotary = true;
  int64_t head_dim = 0;
  RotaryStyle style = RotaryStyle::half;
  Sdpa sdpa;
  std::optional<KvCache> cache;
  std::optional<StaticKvCache> static_cache;  // in its place; `before` undefined: zeros

  static Attention load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& cos,
                  const Tensor& sin, const KvState& state) const;

 private:
  // Keys and values that the queries see, and which of these slots hold tokens.
  struct Attended {
    Tensor k, v;
    SlotRange tokens;
  };
  Attended attend(Context& ctx, const Tensor& k, const Tensor& v, const KvState& state) const;
};

// The state and mask operands of a call that has them.
KvState kv_state(const BlockCall& call);
// cos or sin of a call; undefined when the attention does not rotate.
Tensor rotary_operand(const BlockCall& call, const Attention& attention, const char* name);
void take_mask_operands(const BlockCall& call, AttentionMask& mask);

void run_attention(const BlockCall& call);

}  // namespace plumb
