#include "blocks/models/dialects.h"

#include <cmath>

#include "blocks/models/decoder.h"

namespace plumb::blocks {

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> rows = {
      {.model_type = "llama",
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .mlp_bias = {"mlp_bias"}},
      {.model_type = "gemma2",
       .sandwich = true,
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .norm_offset = 1,
       .norm_rounding = WeightRounding::after,
       .activation = {"hidden_activation", "gelu_pytorch_tanh"},
       .tied = true,
       .scaled_embedding = true,
       .head_dim = 256,
       .score_scale = {"query_pre_attn_scalar", 256},
       .score_cap = {"attn_logit_softcapping", 50},
       .logit_cap = {"final_logit_softcapping", 30},
       .slides = Slides::every_other,
       .unread = {"hidden_act", "sliding_window_size"}},  // earlier names
      {.model_type = "mistral", .slides = Slides::always},
      {.model_type = "qwen2", .qkv_bias = {.otherwise = true}, .slides = Slides::where_asked},
      {.model_type = "qwen3",
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .qk_norm = true,
       .head_dim = 128,
       .slides = Slides::where_asked},
  };
  return rows;
}

namespace {

bool read(const Config& config, const Key<bool>& key) {
  return key.name ? config.boolean_or(key.name, key.otherwise) : key.otherwise;
}

std::optional<double> read(const Config& config, const Key<std::optional<double>>& key) {
  return key.name ? config.number_or_none(key.name, key.otherwise) : key.otherwise;
}

// Per layer; none: it sees all.
std::vector<std::optional<int64_t>> read_windows(const Config& config, Slides slides,
                                                 int64_t layers) {
  constexpr int64_t kDefaultWindow = 4096;
  constexpr double kDefaultFullLayers = 28;
  std::vector<std::optional<int64_t>> windows(static_cast<size_t>(layers));
  if (slides == Slides::never) return windows;
  auto window = config.window_or_none("sliding_window", kDefaultWindow);
  const bool asked = slides == Slides::where_asked;
  if (asked && !config.boolean_or("use_sliding_window", false)) window.reset();
  // Not a size: with 0 every layer slides.
  const double full = asked ? config.number_or("max_window_layers", kDefaultFullLayers) : 0;
  const std::vector<std::string> types =
      slides == Slides::always ? std::vector<std::string>{} : config.layer_types(layers);
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool by_place =
        slides == Slides::every_other ? i % 2 == 0 : static_cast<double>(i) >= full;
    if (types.empty() ? by_place : types[i] == "sliding_attention") windows[i] = window;
  }
  return windows;
}

// A float32 buffer in transformers, cast to the model's dtype.
double root_of_hidden(int64_t hidden, DType dtype) {
  return round_to(dtype, round_to(DType::f32, std::sqrt(static_cast<double>(hidden))));
}

double read_score_scale(const Config& config, const Key<double>& key, int64_t head_dim) {
  const auto otherwise = static_cast<double>(head_dim);
  return 1 / std::sqrt(key.name ? config.number_or(key.name, key.otherwise) : otherwise);
}

}  // namespace

std::unique_ptr<CausalLm> load_decoder(const Weights& weights, const Config& config,
                                       const Dialect& dialect) {
  const DecoderSizes sizes = DecoderSizes::read(config, dialect.head_dim);
  const RmsNormParams norm{config.number_or("rms_norm_eps", 1e-6), dialect.norm_offset,
                           dialect.norm_rounding};
  const Activation function =
      read_activation(config, dialect.activation.name, dialect.activation.otherwise);
  for (const char* key : dialect.unread) config.ignore(key);
  const bool qkv_bias = read(config, dialect.qkv_bias), o_bias = read(config, dialect.o_bias);
  const bool mlp_bias = read(config, dialect.mlp_bias);
  const double scale = read_score_scale(config, dialect.score_scale, sizes.head_dim);
  const std::optional<double> score_cap = read(config, dialect.score_cap);
  const auto windows = read_windows(config, dialect.slides, sizes.layers);

  auto model = std::make_unique<TransformerDecoder>();
  model->load_ends(weights, config, sizes, norm,
                   config.boolean_or("tie_word_embeddings", dialect.tied));
  if (dialect.scaled_embedding) {
    model->embedding.scale = root_of_hidden(sizes.hidden, model->dtype());
  }
  model->head.softcap = read(config, dialect.logit_cap);
  for (size_t i = 0; i < windows.size(); ++i) {
    const Weights w = weights / "model" / "layers" / std::to_string(i);
    const auto norm_named = [&](const char* name) {
      return load_norm(w / name, sizes.hidden, norm);
    };
    DecoderLayer layer;
    layer.sandwich = dialect.sandwich;
    layer.input_norm = norm_named("input_layernorm");
    layer.attention = load_attention(w / "self_attn", sizes, qkv_bias, o_bias);
    if (dialect.qk_norm) {
      layer.attention.q_norm = load_norm(w / "self_attn" / "q_norm", sizes.head_dim, norm);
      layer.attention.k_norm = load_norm(w / "self_attn" / "k_norm", sizes.head_dim, norm);
    }
    set_attention(layer.attention, scale, score_cap, windows[i]);
    layer.post_attention_norm = norm_named("post_attention_layernorm");
    if (dialect.sandwich) layer.pre_feedforward_norm = norm_named("pre_feedforward_layernorm");
    layer.mlp = load_mlp(w / "mlp", sizes, mlp_bias, function);
    if (dialect.sandwich) layer.post_feedforward_norm = norm_named("post_feedforward_layernorm");
    model->layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace plumb::blocks
