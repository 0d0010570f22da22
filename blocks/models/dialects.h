// Decoder models of equal layers as rows of a table, each saying where it differs from LLaMA.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "blocks/decoder_layer.h"
#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

// A key of config.json, and its value where the file does not have it: transformers' default.
// Without a key: always that value.
template <class T>
struct Key {
  const char* name = nullptr;
  T otherwise = {};
};

// Which layers see no more than `sliding_window` tokens. Only for models that have windows is the
// key known at all.
enum class Slides {
  never,
  always,
  every_other,  // from the first on, unless layer_types says otherwise
  where_asked,  // if use_sliding_window: from max_window_layers on, or as layer_types says
};

// The norms of layers, of queries and keys, and in front of the head.
enum class NormKind {
  rms,
  layer,  // without bias; of queries and keys with a weight of each head
};

// Defaults are LLaMA's (1 to 3.3 and what copies it), HF's modeling_llama.py:
//   x = E[ids] * scale
//   per layer, pre_norm: x += attention(norm(x)); x += down(act(gate(n)) * up(n)), n = norm(x)
//              sandwich: the same with a norm around each branch
//              parallel: x += attention(n); x += down(act(gate(n)) * up(n)), n = norm(x)
//   logits = softcap(head(norm(x)) * scale)
struct Dialect {
  std::string_view model_type;  // as config.json has it
  std::string_view classes;     // what the names of transformers' classes begin with
  LayerForm form = LayerForm::pre_norm;
  bool packed = false;  // q, k and v are one matrix, gate and up are another
  Key<bool> qkv_bias = {}, o_bias = {}, mlp_bias = {};
  Key<bool> qk_norm = {};  // of each head's queries and keys
  NormKind norm = NormKind::rms;
  Key<double> norm_eps = {"rms_norm_eps", 1e-6};
  double norm_offset = 0;
  WeightRounding norm_rounding = WeightRounding::before;
  Key<const char*> activation = {"hidden_act", "silu"};
  bool tied = false;              // tie_word_embeddings, where the file does not have it
  bool scaled_embedding = false;  // by the root of hidden_size
  int64_t head_dim = 0;           // where the file does not have it; 0: hidden_size / heads
  Key<double> score_scale = {};   // scores are scaled by the inverse of its root; no key: head_dim
  Key<std::optional<double>> score_cap = {}, logit_cap = {}, logit_scale = {};
  RotaryRules rotary = {};
  Rotation rotation = {};  // what the model is given; recorded tables may have other columns
  Slides slides = Slides::never;
  std::optional<int64_t> window = 4096;  // where the file does not have it
  std::vector<const char*> unread = {};  // keys that published files have and HF's code ignores
};
const std::vector<Dialect>& dialects();

std::unique_ptr<CausalLm> load_decoder(const Weights& weights, const Config& config,
                                       const Dialect& dialect);

}  // namespace plumb::blocks
