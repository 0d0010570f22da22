#include "blocks/models/dialects.h"

#include <cmath>

#include "blocks/models/decoder.h"

namespace plumb::blocks {

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> rows = {
      {.model_type = "llama",
       .classes = "Llama",
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .mlp_bias = {"mlp_bias"}},
      {.model_type = "gemma2",
       .classes = "Gemma2",
       .form = LayerForm::sandwich,
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
      {.model_type = "mistral", .classes = "Mistral", .slides = Slides::always},
      {.model_type = "qwen2",
       .classes = "Qwen2",
       .qkv_bias = {.otherwise = true},
       .slides = Slides::where_asked},
      {.model_type = "qwen3",
       .classes = "Qwen3",
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .qk_norm = {.otherwise = true},
       .head_dim = 128,
       .slides = Slides::where_asked},
      {.model_type = "phi3",
       .classes = "Phi3",
       .packed = true,
       .norm_eps = {"rms_norm_eps", 1e-5},
       .rotary = {.partial = true, .trained = 4096},
       .slides = Slides::always,
       .window = {},
       .unread = {"attention_bias", "mlp_bias", "lm_head_bias", "full_attn_mod",
                  "interpolate_factor",
                  "original_max_position_embeddings"}},  // of its authors' code
      {.model_type = "cohere",
       .classes = "Cohere",
       .form = LayerForm::parallel,
       .qkv_bias = {"attention_bias"},
       .o_bias = {"attention_bias"},
       .qk_norm = {"use_qk_norm"},
       .norm = NormKind::layer,
       .norm_eps = {"layer_norm_eps", 1e-5},
       .tied = true,
       .logit_scale = {"logit_scale", 0.0625},
       .rotary = {.theta = 500000},
       .rotation = {.style = RotaryStyle::interleaved, .in_float32 = true, .table_of_pairs = true},
       .unread = {"model_max_length"}},  // of its tokenizer
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
std::vector<std::optional<int64_t>> read_windows(const Config& config, const Dialect& dialect,
                                                 int64_t layers) {
  const Slides slides = dialect.slides;
  constexpr double kDefaultFullLayers = 28;
  std::vector<std::optional<int64_t>> windows(static_cast<size_t>(layers));
  if (slides == Slides::never) return windows;
  auto window = config.window_or_none("sliding_window", dialect.window);
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

Norm load_norm(const Weights& weights, const Shape& shape, const Dialect& dialect, double eps) {
  const Tensor weight = weights.shaped("weight", shape);
  if (dialect.norm == NormKind::layer) return LayerNorm{weight, {}, eps};
  return RmsNorm{weight, {eps, dialect.norm_offset, dialect.norm_rounding}};
}

double read_score_scale(const Config& config, const Key<double>& key, int64_t head_dim) {
  const auto otherwise = static_cast<double>(head_dim);
  return 1 / std::sqrt(key.name ? config.number_or(key.name, key.otherwise) : otherwise);
}

}  // namespace

std::unique_ptr<CausalLm> load_decoder(const Weights& weights, const Config& config,
                                       const Dialect& dialect) {
  const DecoderSizes sizes = DecoderSizes::read(config, dialect.head_dim);
  const double eps = config.number_or(dialect.norm_eps.name, dialect.norm_eps.otherwise);
  const Activation function =
      read_activation(config, dialect.activation.name, dialect.activation.otherwise);
  for (const char* key : dialect.unread) config.ignore(key);
  const bool qkv_bias = read(config, dialect.qkv_bias), o_bias = read(config, dialect.o_bias);
  const bool mlp_bias = read(config, dialect.mlp_bias), qk_norm = read(config, dialect.qk_norm);
  const double scale = read_score_scale(config, dialect.score_scale, sizes.head_dim);
  const std::optional<double> score_cap = read(config, dialect.score_cap);
  const auto windows = read_windows(config, dialect, sizes.layers);

  auto model = std::make_unique<TransformerDecoder>();
  model->load_ends(weights, config, sizes, config.boolean_or("tie_word_embeddings", dialect.tied),
                   dialect.rotary);
  if (dialect.rotary.trained != 0 && model->rotary.string("type") == "longrope") {
    model->reread_at = model->rotary.integer("original_max_position") + 1;
  }
  model->norm = load_norm(weights / "model" / "norm", {sizes.hidden}, dialect, eps);
  model->norm_path = "model.norm";
  if (dialect.scaled_embedding) {
    model->embedding.scale = root_of_hidden(sizes.hidden, model->dtype());
  }
  model->head.softcap = read(config, dialect.logit_cap);
  model->head.scale = read(config, dialect.logit_scale);
  for (size_t i = 0; i < windows.size(); ++i) {
    const Weights w = weights / "model" / "layers" / std::to_string(i);
    const auto norm_named = [&](const char* name) {
      return load_norm(w / name, {sizes.hidden}, dialect, eps);
    };
    const auto norm_of_heads = [&](const char* name, int64_t heads) {
      const Shape own{heads, sizes.head_dim}, shared{sizes.head_dim};
      return load_norm(w / "self_attn" / name, dialect.norm == NormKind::layer ? own : shared,
                       dialect, eps);
    };
    DecoderLayer layer;
    layer.form = dialect.form;
    const bool sandwich = layer.form == LayerForm::sandwich;
    layer.input_norm = norm_named("input_layernorm");
    layer.attention = load_attention(w / "self_attn", sizes, qkv_bias, o_bias, dialect.packed);
    if (qk_norm) {
      layer.attention.q_norm = norm_of_heads("q_norm", sizes.heads);
      layer.attention.k_norm = norm_of_heads("k_norm", sizes.kv_heads);
    }
    layer.attention.rotation = dialect.rotation;
    set_attention(layer.attention, scale, score_cap, windows[i]);
    if (layer.form != LayerForm::parallel) {
      layer.post_attention_norm = norm_named("post_attention_layernorm");
    }
    if (sandwich) layer.pre_feedforward_norm = norm_named("pre_feedforward_layernorm");
    layer.mlp = load_mlp(w / "mlp", sizes, mlp_bias, function, dialect.packed);
    if (sandwich) layer.post_feedforward_norm = norm_named("post_feedforward_layernorm");
    model->layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace plumb::blocks
