// A decoder-only model of equal layers: LLaMA and its descendants, Gemma2.
#pragma once

#include "blocks/decoder_layer.h"
#include "blocks/embedding.h"
#include "blocks/lm_head.h"
#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

// The sizes that LLaMA, Mistral, Qwen2 and Gemma2 state under the same names.
struct DecoderSizes {
  int64_t hidden, intermediate, layers, vocabulary;
  int64_t heads, kv_heads, head_dim;
  int64_t max_position;

  // `head_dim` 0: hidden / heads unless the configuration says otherwise.
  static DecoderSizes read(const Config& config, int64_t head_dim = 0);
};

Linear load_linear(const Weights& weights, int64_t rows, int64_t columns, bool bias);
RmsNorm load_norm(const Weights& weights, int64_t channels, const RmsNormParams& params);
// q, k, v and o projections; the caller sets sdpa and cache. Packed: q, k and v are one matrix.
Attention load_attention(const Weights& weights, const DecoderSizes& sizes, bool qkv_bias,
                         bool o_bias, bool packed = false);
// Packed: gate and up are one matrix.
GluMlp load_mlp(const Weights& weights, const DecoderSizes& sizes, bool bias, Activation function,
                bool packed = false);
// Causal, seeing `window` slots; none: all.
void set_attention(Attention& attention, double scale, std::optional<double> softcap,
                   std::optional<int64_t> window);
Activation read_activation(const Config& config, std::string_view key,
                           const std::string& otherwise);

// Embedding, layers, final norm, logits: what all models have, around layers of any kind.
struct Decoder : CausalLm {
  DecoderSizes sizes;
  Embedding embedding;
  Norm norm;
  std::string norm_path;  // its name, for an observer
  LmHead head;
  Params rotary;  // of RotaryFrequencies
  std::optional<int64_t> reread_at;

  // All but the layers, of a "model." and "lm_head." tree, and but the norm's parameters.
  void load_ends(const Weights& weights, const Config& config, const DecoderSizes& of, bool tied,
                 const RotaryRules& rules = {});

  std::optional<int64_t> rereads_at() const override { return reread_at; }
  int64_t vocabulary() const override { return sizes.vocabulary; }
  DType dtype() const override { return embedding.weight.dtype(); }
  Sequence begin(Device& device, int64_t batch, int64_t max_length,
                 const std::vector<int64_t>& padding, CacheKind kind) const override;
  void forward(Context& ctx, const Tensor& logits, const Tensor& ids,
               Sequence& sequence) const override;
  // The same up to the head: the last tokens' hidden states behind the norm, [B, T', C].
  // The sequence goes no further.
  void run_to_head(Context& ctx, const Tensor& last, const Tensor& ids, Sequence& sequence) const;
  bool replayable(const Sequence& sequence) const override {
    return !sequence.angles.depend_on_length() && !sequence.token_valid.defined();
  }

 protected:
  // Gives a new sequence the caches and states of the layers.
  virtual void add_buffers(Device& device, Sequence& sequence) const = 0;
  // hidden [B, T, C] through all layers, in place. cos, sin [B|1, T, head_dim].
  virtual void run_layers(Context& ctx, const Tensor& hidden, const Tensor& cos, const Tensor& sin,
                          Sequence& sequence) const = 0;
};

// Whose layers all are DecoderLayers.
struct TransformerDecoder final : Decoder {
  std::vector<DecoderLayer> layers;

 protected:
  void add_buffers(Device& device, Sequence& sequence) const override;
  void run_layers(Context& ctx, const Tensor& hidden, const Tensor& cos, const Tensor& sin,
                  Sequence& sequence) const override;
};

}  // namespace plumb::blocks
