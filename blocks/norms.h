// RMSNorm and LayerNorm as blocks.
#pragma once

#include <variant>

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
  Tensor weight;  // [C], or [H, C]: of each head of x [..., H, C], without a bias
  Tensor bias;    // [C] or undefined
  double eps = 0;

  static LayerNorm load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
};

// The norm of a layer: an RMSNorm where its params have an offset and a rounding, else a
// LayerNorm.
struct Norm : std::variant<RmsNorm, LayerNorm> {
  using variant::variant;

  static Norm load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& x) const;
  // sum = x + residual, out = the norm of it; sum may be x or residual.
  void add(Context& ctx, const Tensor& sum, const Tensor& out, const Tensor& x,
           const Tensor& residual) const;
};

void run_rms_norm(const BlockCall& call);
void run_layer_norm(const BlockCall& call);

}  // namespace plumb::blocks
