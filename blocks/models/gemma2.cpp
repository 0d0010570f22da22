// Gemma2. HF: modeling_gemma2.py.
//   x = R(E[ids] * R(sqrt(C)))
//   per layer: x += norm(attention(norm(x))); x += norm(down(act(gate(n)) * up(n))), n = norm(x)
//   logits = cap * tanh(head(norm(x)) / cap), the head being E
// RMSNorm multiplies with 1 + weight before it rounds; scores are scaled by
// query_pre_attn_scalar^-1/2 and capped before the mask; every other layer, from the first, slides.
#include "blocks/models/gemma2.h"

#include <cmath>

#include "blocks/models/decoder.h"

namespace plumb::blocks {
namespace {

// A float32 buffer in transformers, cast to the model's dtype.
double embedding_scale(int64_t hidden, DType dtype) {
  return round_to(dtype, round_to(DType::f32, std::sqrt(static_cast<double>(hidden))));
}

bool slides(const std::vector<std::string>& types, int64_t layer) {
  return types.empty() ? layer % 2 == 0 : types[static_cast<size_t>(layer)] == "sliding_attention";
}

}  // namespace

std::unique_ptr<CausalLm> load_gemma2(const Weights& weights, const Config& config) {
  constexpr int64_t kDefaultHeadDim = 256, kDefaultWindow = 4096;
  const DecoderSizes sizes = DecoderSizes::read(config, kDefaultHeadDim);
  const RmsNormParams norm{config.number_or("rms_norm_eps", 1e-6), 1, WeightRounding::after};
  const Activation function = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  config.ignore("hidden_act");           // an earlier name, which transformers does not read
  config.ignore("sliding_window_size");  // the same: sliding_window counts
  const bool bias = config.boolean_or("attention_bias", false);
  const double scale = 1 / std::sqrt(config.number_or("query_pre_attn_scalar", 256));
  const auto score_cap = config.number_or_none("attn_logit_softcapping", 50.0);
  const auto window = config.window_or_none("sliding_window", kDefaultWindow);
  const std::vector<std::string> types = config.layer_types(sizes.layers);

  auto model = std::make_unique<TransformerDecoder>();
  model->load_ends(weights, config, sizes, norm, config.boolean_or("tie_word_embeddings", true));
  model->embedding.scale = embedding_scale(sizes.hidden, model->dtype());
  model->head.softcap = config.number_or_none("final_logit_softcapping", 30.0);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const Weights w = weights / "model" / "layers" / std::to_string(i);
    const auto norm_named = [&](const char* name) {
      return load_norm(w / name, sizes.hidden, norm);
    };
    DecoderLayer layer;
    layer.sandwich = true;
    layer.input_norm = norm_named("input_layernorm");
    layer.attention = load_attention(w / "self_attn", sizes, bias, bias);
    set_attention(layer.attention, scale, score_cap, slides(types, i) ? window : std::nullopt);
    layer.post_attention_norm = norm_named("post_attention_layernorm");
    layer.pre_feedforward_norm = norm_named("pre_feedforward_layernorm");
    layer.mlp = load_mlp(w / "mlp", sizes, false, function);
    layer.post_feedforward_norm = norm_named("post_feedforward_layernorm");
    model->layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace plumb::blocks
