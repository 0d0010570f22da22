// The language model head: hidden states to logits.
#pragma once

#include <optional>

#include "blocks/linear.h"

namespace plumb::blocks {

// Logits of the last tokens: slice, product, scale, softcap. hidden [B, T, C] (after the final
// norm) -> out [B, T', V] with T' = logits_to_keep, or T when that is 0.
struct LmHead {
  Linear projection;  // tied to the embedding or not: the same tensor either way
  int64_t logits_to_keep = 0;
  std::optional<double> softcap, scale = {};

  static LmHead load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden) const;
};

void run_lm_head(const BlockCall& call);

}  // namespace plumb::blocks
