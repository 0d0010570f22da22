// A linear layer: a product and an optional bias.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// torch.nn.Linear. x [..., K] -> out [..., N].
struct Linear {
  Tensor weight;  // [N, K]
  Tensor bias;    // [N] or undefined

  static Linear load(const Weights& weights) { return {weights["weight"], weights.find("bias")}; }
  int64_t rows() const { return weight.dim(0); }
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const {
    ctx.ops.linear(out, x, weight, bias);
  }
};

void run_linear(const BlockCall& call);

}  // namespace plumb::blocks
