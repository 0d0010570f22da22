// A decoder layer: norms, attention, MLP and residual sums.
#pragma once

#include "blocks/attention.h"
#include "blocks/glu_mlp.h"
#include "blocks/norms.h"

namespace plumb::blocks {

// One layer of a decoder. hidden [B, T, C] -> out [B, T, C].
//   pre_norm (LlamaDecoderLayer):  x += attention(input_norm(x)); x += mlp(post_attention_norm(x))
//   sandwich (Gemma2DecoderLayer): x += post_attention_norm(attention(input_norm(x)));
//                                  x += post_feedforward_norm(mlp(pre_feedforward_norm(x)))
struct DecoderLayer {
  RmsNorm input_norm, post_attention_norm;
  RmsNorm pre_feedforward_norm, post_feedforward_norm;  // sandwich only
  Attention attention;
  GluMlp mlp;
  bool sandwich = false;

  static DecoderLayer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& cos,
                  const Tensor& sin, const KvState& state) const;
};

void run_decoder_layer(const BlockCall& call);

}  // namespace plumb::blocks
