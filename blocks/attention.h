// Self-attention of a decoder layer: projections, rotary, cache, sdpa, output projection.
#pragma once

#include <array>
#include <optional>
#include <variant>

#include "blocks/kv_cache.h"
#include "blocks/linear.h"
#include "blocks/low_rank_adapter.h"
#include "blocks/norms.h"
#include "blocks/rotary.h"
#include "blocks/sdpa.h"
#include "kernels/ops/slots.h"

namespace plumb::blocks {

// Keys and values of one layer before and after a call, each a tensor of its own. `before` is
// undefined while the cache is empty, `after` when it is not asked for.
struct KvTensors {
  Tensor keys_before, values_before;
  Tensor keys_after, values_after;
};
// Slots whose first `query_offset` hold what is stored, the next T being written; all are seen, as
// far as the mask allows.
struct KvInOrder {
  Tensor keys, values;  // [B, Hkv, P + T or more, D]
};
// Slots for Ops::store_tokens, of a sequence `past` long.
struct KvSlots {
  Tensor keys, values;
  std::optional<int64_t> window;
  Position past;
};
// One token, which is stored and then sees what the slots hold.
struct KvStep {
  KvSlots slots;
};
// Slots that hold a sliding window. The tokens see `stored`, these slots in order, if there are;
// else the keys before and their own.
struct KvSliding {
  KvSlots slots;
  std::optional<KvInOrder> stored;
  KvTensors before;
};

// Where one layer's keys and values are.
struct KvState {
  std::variant<KvTensors, KvInOrder, KvStep, KvSliding> cache;
  // Slots that the first query and the first key are further along than the mask says.
  int64_t query_offset = 0, key_offset = 0;
  // Which tokens of the sequence, from its first on, are no padding: bool [B, P + T or more], or
  // undefined: all.
  Tensor token_valid = {};
};

// q, k, v projections, norms of q and k, rotary, cache, sdpa, output projection: LlamaAttention,
// Gemma2Attention, Qwen3Attention, CohereAttention, Zamba2Attention. The three projections are
// matrices of their own or one packed one, q first (Phi3Attention). hidden [B, T, C], cos, sin
// [B|1, T, r], undefined without rotary -> out [B, T, C].
struct Attention {
  Linear q_proj, k_proj, v_proj, o_proj;
  Linear qkv_proj;                                                // in place of the first three
  std::optional<LowRankAdapter> q_adapter, k_adapter, v_adapter;  // added to the projections
  std::optional<Norm> q_norm, k_norm;                             // of each head [D]
  bool rotary = true;
  int64_t head_dim = 0;
  Rotation rotation;
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
  // q, k and v of the packed projection or the three, with adapters: [B, T, heads, D].
  std::array<Tensor, 3> project(Context& ctx, const Tensor& hidden) const;
  // To the rows of q, k and v; adapters that there are.
  void add_adapters(Context& ctx, const Tensor& hidden, const std::array<Tensor, 3>& rows) const;
  // Stores the new k and v.
  Attended attend(Context& ctx, const Tensor& k, const Tensor& v, const KvState& state) const;
  Attended append(Context& ctx, const Tensor& k, const Tensor& v, const KvTensors& tensors) const;
  Attended update_static(Context& ctx, const Tensor& k, const Tensor& v,
                         const KvTensors& tensors) const;
  AttentionMask mask_of(const KvState& state, int64_t keys) const;
};

// The state and mask operands of a call that has them.
KvState kv_state(const BlockCall& call);
// cos or sin of a call; undefined when the attention does not rotate.
Tensor rotary_operand(const BlockCall& call, const Attention& attention, const char* name);
void take_mask_operands(const BlockCall& call, AttentionMask& mask);

void run_attention(const BlockCall& call);

}  // namespace plumb::blocks
