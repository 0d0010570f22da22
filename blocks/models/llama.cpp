// LLaMA (1 to 3.3 and what copies it). HF: modeling_llama.py.
//   x = E[ids]
//   per layer: x += attention(norm(x)); x += down(act(gate(n)) * up(n)), n = norm(x)
//   logits = head(norm(x))
// RMSNorm rounds before the weight; rotary on the whole head, in halves; scores scaled by
// head_dim^-1/2.
#include "blocks/models/llama.h"

#include <cmath>

#include "blocks/models/decoder.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_llama(const Weights& weights, const Config& config) {
  const DecoderSizes sizes = DecoderSizes::read(config);
  return load_llama_like(weights, config, sizes,
                         {.qkv_bias = config.boolean_or("attention_bias", false),
                          .o_bias = config.boolean_or("attention_bias", false),
                          .mlp_bias = config.boolean_or("mlp_bias", false)});
}

std::unique_ptr<CausalLm> load_llama_like(const Weights& weights, const Config& config,
                                          const DecoderSizes& sizes, const LlamaVariant& variant) {
  const RmsNormParams norm{config.number_or("rms_norm_eps", 1e-6), 0, WeightRounding::before};
  const Activation function = read_activation(config, "hidden_act", "silu");
  auto model = std::make_unique<TransformerDecoder>();
  model->load_ends(weights, config, sizes, norm, config.boolean_or("tie_word_embeddings", false));
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.head_dim));
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const Weights w = weights / "model" / "layers" / std::to_string(i);
    DecoderLayer layer;
    layer.input_norm = load_norm(w / "input_layernorm", sizes.hidden, norm);
    layer.attention = load_attention(w / "self_attn", sizes, variant.qkv_bias, variant.o_bias);
    set_attention(layer.attention, scale, std::nullopt,
                  variant.windows.empty() ? std::nullopt : variant.windows[i]);
    layer.post_attention_norm = load_norm(w / "post_attention_layernorm", sizes.hidden, norm);
    layer.mlp = load_mlp(w / "mlp", sizes, variant.mlp_bias, function);
    model->layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace plumb::blocks
