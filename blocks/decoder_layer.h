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
//   parallel (CohereDecoderLayer): x += attention(n); x += mlp(n), n = input_norm(x)
enum class LayerForm { pre_norm, sandwich, parallel };
std::string_view name_of(LayerForm form);

struct DecoderLayer {
  Norm input_norm, post_attention_norm;              // parallel: the first alone
  Norm pre_feedforward_norm, post_feedforward_norm;  // sandwich only
  Attention attention;
  GluMlp mlp;
  LayerForm form = LayerForm::pre_norm;

  static DecoderLayer load(const Weights& weights, const Params& params);
  void operator()(Context& ctx, const Tensor& out, const Tensor& hidden, const Tensor& cos,
                  const Tensor& sin, const KvState& state) const;
};

void run_decoder_layer(const BlockCall& call);

}  // namespace plumb::blocks
