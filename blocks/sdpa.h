// Scaled dot-product attention as one op or composed of its parts.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// Scaled dot product attention with every switch that a recording can name.
// q [B, H, T, D], k, v [B, Hkv, S, D] -> out [B, T, H, D].
struct Sdpa {
  SdpaParams params;
  AttentionMask mask;

  static Sdpa load(const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& q, const Tensor& k,
                  const Tensor& v) const {
    ctx.ops.sdpa(out, q, k, v, mask, params);
  }
};

// causal, window, query_offset, key_offset, fully_masked.
AttentionMask read_mask(const Params& params);

void run_sdpa(const BlockCall& call);
// The mask that sdpa derives, as a tensor: bit for bit what transformers passes.
void run_causal_mask(const BlockCall& call);

}  // namespace plumb::blocks
