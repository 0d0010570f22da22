// RMSNorm and LayerNorm as blocks.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// RMSNorm over the last axis, LLaMA's or Gemma's rounding order. x [..., C] -> out [..., C].
struct RmsNorm {
  Tensor weight;  // [C]
  RmsNormParams params;

  static RmsNorm load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
};

RmsNormParams read_rms_norm_params(const Params& params);

// torch.nn.LayerNorm over the last axis. x [..., C] -> out [..., C].
struct LayerNorm {
  Tensor weight;  // [C]
  Tensor bias;    // [C]
  double eps = 0;

  static LayerNorm load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
};

void run_rms_norm(const BlockCall& call);
void run_layer_norm(const BlockCall& call);

}  // namespace plumb::blocks
