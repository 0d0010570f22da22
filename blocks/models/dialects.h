// Decoder models of equal layers as rows of a table, each saying where it differs from LLaMA.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "blocks/models/causal_lm.h"
#include "kernels/ops/ops.h"

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

// Defaults are LLaMA's (1 to 3.3 and what copies it), HF's modeling_llama.py:
//   x = E[ids] * scale
//   per layer, pre_norm: x += attention(norm(x)); x += down(act(gate(n)) * up(n)), n = norm(x)
//              sandwich: the same with a norm around each branch
//   logits = softcap(head(norm(x)))
// Rotary is on the whole head, in halves.
struct Dialect {
  std::string_view model_type;  // as config.json has it
  bool sandwich = false;
  Key<bool> qkv_bias = {}, o_bias = {}, mlp_bias = {};
  bool qk_norm = false;  // RMSNorm of each head's queries and keys
  double norm_offset = 0;
  WeightRounding norm_rounding = WeightRounding::before;
  Key<const char*> activation = {"hidden_act", "silu"};
  bool tied = false;              // tie_word_embeddings, where the file does not have it
  bool scaled_embedding = false;  // by the root of hidden_size
  int64_t head_dim = 0;           // where the file does not have it; 0: hidden_size / heads
  Key<double> score_scale = {};   // scores are scaled by the inverse of its root; no key: head_dim
  Key<std::optional<double>> score_cap = {}, logit_cap = {};
  Slides slides = Slides::never;
  std::vector<const char*> unread = {};  // keys that published files have and HF's code ignores
};
const std::vector<Dialect>& dialects();

std::unique_ptr<CausalLm> load_decoder(const Weights& weights, const Config& config,
                                       const Dialect& dialect);

}  // namespace plumb::blocks
