// The layers of a hybrid of Mamba2 and shared transformer blocks: Zamba2's.
#pragma once

#include "blocks/attention.h"
#include "blocks/glu_mlp.h"
#include "blocks/mamba2.h"
#include "blocks/norms.h"

namespace plumb::blocks {

// mlp(pre_ff_norm(attention(input_norm(hidden ++ original)))), the current hidden states first;
// no residual connection. hidden, original [B, T, C] -> out [B, T, C].
// Zamba2AttentionDecoderLayer.
struct SharedTransformer {
  RmsNorm input_norm, pre_ff_norm;
  Attention attention;
  GluMlp mlp;

  static SharedTransformer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& original,
                  const Tensor& cos, const Tensor& sin, const KvState& state) const;
};

// hidden + mixer(norm(hidden + transformer)): what the transformer adds enters the mixer only.
// hidden, transformer (or undefined) [B, T, C] -> out [B, T, C]. Zamba2MambaDecoderLayer.
struct MambaLayer {
  RmsNorm norm;
  Mamba2Mixer mixer;

  static MambaLayer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& transformer,
                  const Tensor& token_valid, const MambaState& state) const;
};

// mamba(hidden, linear(shared_transformer(hidden, original))). Zamba2HybridLayer.
struct HybridLayer {
  SharedTransformer transformer;
  Linear linear;
  MambaLayer mamba;

  static HybridLayer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& original,
                  const Tensor& cos, const Tensor& sin, const Tensor& token_valid,
                  const KvState& keys, const MambaState& state) const;
};

void run_shared_transformer(const BlockCall& call);
void run_mamba_layer(const BlockCall& call);
void run_hybrid_layer(const BlockCall& call);

}  // namespace plumb::blocks
