#include "blocks/models/decoder.h"

#include <algorithm>

#include "blocks/quantisation.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

DecoderSizes DecoderSizes::read(const Config& config, int64_t head_dim) {
  DecoderSizes s{};
  s.hidden = config.size("hidden_size");
  s.intermediate = config.size("intermediate_size");
  s.layers = config.size("num_hidden_layers");
  s.vocabulary = config.size("vocab_size");
  s.heads = config.size("num_attention_heads");
  s.kv_heads = config.size_or("num_key_value_heads", s.heads);
  s.max_position = config.size("max_position_embeddings");
  constexpr int64_t kMostLayers = 10000;
  if (s.layers > kMostLayers) {
    throw BadInput(text(config.where(), ": num_hidden_layers is ", s.layers, ", expected at most ",
                        kMostLayers));
  }
  if (s.heads % s.kv_heads != 0) {
    throw BadInput(text(config.where(), ": num_attention_heads is ", s.heads,
                        ", no multiple of num_key_value_heads, ", s.kv_heads));
  }
  s.head_dim = config.size_or("head_dim", head_dim ? head_dim : s.hidden / s.heads);
  return s;
}

Linear load_linear(const Weights& weights, int64_t rows, int64_t columns, bool bias) {
  if (const QuantisedScheme* scheme = weights.scheme()) {
    return scheme->load(weights, rows, columns, bias);
  }
  return {weights.shaped("weight", {rows, columns}),
          bias ? weights.shaped("bias", {rows}) : Tensor()};
}

RmsNorm load_norm(const Weights& weights, int64_t channels, const RmsNormParams& params) {
  return {weights.shaped("weight", {channels}), params};
}

Attention load_attention(const Weights& weights, const DecoderSizes& s, bool qkv_bias, bool o_bias,
                         bool packed) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  Attention a;
  if (packed) {
    a.qkv_proj = load_linear(weights / "qkv_proj", q + 2 * kv, s.hidden, qkv_bias);
  } else {
    a.q_proj = load_linear(weights / "q_proj", q, s.hidden, qkv_bias);
    a.k_proj = load_linear(weights / "k_proj", kv, s.hidden, qkv_bias);
    a.v_proj = load_linear(weights / "v_proj", kv, s.hidden, qkv_bias);
  }
  a.o_proj = load_linear(weights / "o_proj", s.hidden, q, o_bias);
  a.head_dim = s.head_dim;
  return a;
}

GluMlp load_mlp(const Weights& weights, const DecoderSizes& s, bool bias, Activation function,
                bool packed) {
  const auto widening = [&](const char* name, int64_t rows) {
    return load_linear(weights / name, rows, s.hidden, bias);
  };
  return {
      packed ? widening("gate_up_proj", 2 * s.intermediate) : widening("gate_proj", s.intermediate),
      packed ? Linear() : widening("up_proj", s.intermediate),
      load_linear(weights / "down_proj", s.hidden, s.intermediate, bias), function};
}

void set_attention(Attention& attention, double scale, std::optional<double> softcap,
                   std::optional<int64_t> window) {
  attention.sdpa.params = {scale, softcap};
  attention.sdpa.mask.causal = true;
  attention.sdpa.mask.window = window;
  attention.cache = KvCache{window};
}

Activation read_activation(const Config& config, std::string_view key,
                           const std::string& otherwise) {
  const std::string name = config.string_or(key, otherwise);
  const auto function = activation_from_name(name);
  require<Unsupported>(function.has_value(), "config", config.where(), ": ", key, " is \"", name,
                       "\"; known: silu, gelu, gelu_pytorch_tanh, tanh");
  return *function;
}

void Decoder::load_ends(const Weights& weights, const Config& config, const DecoderSizes& of,
                        bool tied, const RotaryRules& rules) {
  const Shape table{of.vocabulary, of.hidden};
  sizes = of;
  embedding.weight = (weights / "model" / "embed_tokens").shaped("weight", table);
  if (tied) weights.tie("lm_head.weight", "model.embed_tokens.weight");
  if (tied) head.projection.weight = embedding.weight;
  else head.projection = load_linear(weights / "lm_head", of.vocabulary, of.hidden, false);
  rotary = config.rotary(of.head_dim, of.max_position, rules);
  RotaryAngles::check(rotary);
}

namespace {

// As in Sequence.
Tensor token_valid(Device& device, int64_t max_length, const std::vector<int64_t>& padding) {
  if (padding.empty()) return {};
  const Shape shape{static_cast<int64_t>(padding.size()), max_length};
  const Tensor host = host_tensor(DType::boolean, shape);
  for (int64_t row = 0; row < shape[0]; ++row) {
    bool* valid = host.data<bool>() + row * max_length;
    const int64_t absent = padding[static_cast<size_t>(row)];
    require(absent >= 0 && absent < max_length, "begin", "sequence ", row, " has ", absent,
            " padding tokens, there is room for ", max_length, " tokens in all");
    std::fill_n(valid, absent, false);
    std::fill_n(valid + absent, max_length - absent, true);
  }
  const Tensor out = device.allocate(DType::boolean, shape);
  device.upload(out, host.raw());
  return out;
}

}  // namespace

Sequence Decoder::begin(Device& device, int64_t batch, int64_t max_length,
                        const std::vector<int64_t>& padding, CacheKind kind) const {
  require(batch > 0 && max_length > 0, "begin", batch, " sequences of up to ", max_length,
          " tokens, expected at least 1 of each");
  require(padding.empty() || static_cast<int64_t>(padding.size()) == batch, "begin", batch,
          " sequences, but ", padding.size(), " numbers of padding tokens");
  Sequence out{batch, 0, max_length, token_valid(device, max_length, padding),
               RotaryAngles(device, dtype(), rotary, max_length, padding)};
  out.kind = kind;
  out.position = device.allocate(DType::i64, {1});
  device.fill(out.position, 0);
  add_buffers(device, out);
  return out;
}

void Decoder::forward(Context& ctx, const Tensor& logits, const Tensor& ids,
                      Sequence& sequence) const {
  Arena::Scope scope(ctx.ops.arena());
  const Tensor last = ctx.take(dtype(), {logits.dim(0), logits.dim(1), sizes.hidden});
  run_to_head(ctx, last, ids, sequence);
  head(ctx, logits, last);
  ctx.probe("lm_head:logits", "out", logits);
  ctx.ops.advance({sequence.length, sequence.position}, ids.dim(1));
  sequence.length += ids.dim(1);
}

void Decoder::run_to_head(Context& ctx, const Tensor& last, const Tensor& ids,
                          Sequence& sequence) const {
  Arena::Scope scope(ctx.ops.arena());
  const int64_t batch = ids.dim(0), tokens = ids.dim(1), keep = last.dim(1);
  require(batch == sequence.batch && tokens > 0 && keep <= tokens, "forward", "ids have shape ",
          ids.shape(), ", the sequence has batch ", sequence.batch, " and logits of ", keep,
          " tokens are wanted");
  const Tensor hidden = ctx.take(dtype(), {batch, tokens, sizes.hidden});
  const Shape angles{sequence.angles.rows(), tokens, rotary.integer("dim")};
  const Tensor cos = ctx.take(dtype(), angles), sin = ctx.take(dtype(), angles);
  embedding(ctx, hidden, ids);
  ctx.probe("model.embed_tokens", "out", hidden);
  const bool step = tokens == 1 && !sequence.token_valid.defined();
  sequence.angles(ctx, cos, sin, sequence.length, step ? sequence.position : Tensor());
  run_layers(ctx, hidden, cos, sin, sequence);
  norm(ctx, last, hidden.slice(1, tokens - keep, tokens));
  ctx.probe(norm_path, "out", last);
}

void TransformerDecoder::add_buffers(Device& device, Sequence& sequence) const {
  for (const DecoderLayer& layer : layers) {
    sequence.caches.emplace_back(device, dtype(), sequence.batch, sizes.kv_heads, sizes.head_dim,
                                 sequence.max_length, layer.attention.sdpa.mask.window,
                                 sequence.position, sequence.kind);
  }
}

void TransformerDecoder::run_layers(Context& ctx, const Tensor& hidden, const Tensor& cos,
                                    const Tensor& sin, Sequence& sequence) const {
  for (size_t i = 0; i < layers.size(); ++i) {
    const Part part(ctx, "model.layers", static_cast<int64_t>(i));
    KvBuffer& cache = sequence.caches[i];
    layers[i](ctx, hidden, hidden, cos, sin, cache.next(hidden.dim(1), sequence.token_valid));
    cache.show(ctx, "self_attn:kv_cache");
  }
}

}  // namespace plumb::blocks
