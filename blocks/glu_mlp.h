// Gated MLPs: down(act(gate(x)) * up(x)).
#pragma once

#include <optional>

#include "blocks/linear.h"
#include "blocks/low_rank_adapter.h"

namespace plumb::blocks {

// down(act(gate(x)) * up(x)): LlamaMLP, Gemma2MLP. Gate and up are two matrices or one packed one
// whose first half is the gate (GLM, Zamba2). hidden [..., C] -> out [..., C].
struct GluMlp {
  Linear gate, up;  // up is empty when gate holds the packed pair
  Linear down;
  Activation function = Activation::silu;
  std::optional<LowRankAdapter> adapter = {};  // added to the packed pair

  static GluMlp load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden) const;
};

void run_glu_mlp(const BlockCall& call);

}  // namespace plumb::blocks
