#include "blocks/catalog.h"

#include "blocks/attention.h"
#include "blocks/components.h"
#include "blocks/decoder_layer.h"
#include "blocks/embedding.h"
#include "blocks/glu_mlp.h"
#include "blocks/kv_cache.h"
#include "blocks/linear.h"
#include "blocks/lm_head.h"
#include "blocks/norms.h"
#include "blocks/rotary.h"
#include "blocks/sdpa.h"
#include "kernels/error.h"

namespace plumb {

const std::vector<BlockEntry>& block_catalog() {
  using C = BitRule;
  static const std::vector<BlockEntry> entries = {
      {"embedding", run_embedding, C::exact, "token embedding, with Gemma's rounded scale"},
      {"rotary_frequencies", run_rotary_frequencies, C::none, "inverse frequencies of a rope type"},
      {"rotary_table", run_rotary_table, C::leaf, "cos and sin of positions"},
      {"rotary", run_rotary, C::leaf, "rotary embedding of q and k"},
      {"rms_norm", run_rms_norm, C::leaf, "RMSNorm, LLaMA's and Gemma's rounding order"},
      {"layer_norm", run_layer_norm, C::leaf, "LayerNorm"},
      {"linear", run_linear, C::leaf, "matrix product with optional bias"},
      {"activation", run_activation, C::leaf, "silu, gelu, gelu-tanh, tanh"},
      {"glu_activation", run_glu_activation, C::leaf, "act(gate) * up"},
      {"add", run_add, C::leaf, "residual sum"},
      {"scale", run_scale, C::leaf, "times or divided by a number"},
      {"softcap", run_softcap, C::leaf, "cap * tanh(x / cap)"},
      {"repeat_kv", run_repeat_kv, C::exact, "key-value heads repeated for grouped queries"},
      {"matmul", run_matmul, C::leaf, "batched product inside attention"},
      {"masked_add", run_masked_add, C::leaf, "additive mask on scores"},
      {"softmax", run_softmax, C::leaf, "softmax over keys"},
      {"kv_cache", run_kv_cache, C::exact, "dynamic cache, full and sliding"},
      {"causal_mask", run_causal_mask, C::exact, "causal, window and padding mask, bit for bit"},
      {"sdpa", run_sdpa, C::leaf, "scaled dot product attention"},
      {"attention", run_attention, C::none, "projections, rotary, cache, sdpa, output projection"},
      {"glu_mlp", run_glu_mlp, C::cascade, "gated MLP, separate or packed gate and up"},
      {"decoder_layer", run_decoder_layer, C::none, "a LLaMA or Gemma2 layer"},
      {"lm_head", run_lm_head, C::leaf, "logits: slice, product, softcap"},
  };
  return entries;
}

const BlockEntry* find_block(std::string_view name) {
  for (const BlockEntry& entry : block_catalog()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Tensor BlockCall::optional_input(const std::string& name) const {
  const auto found = inputs.find(name);
  return found == inputs.end() ? Tensor() : found->second;
}

Tensor BlockCall::input(const std::string& name) const {
  const auto found = inputs.find(name);
  if (found == inputs.end()) {
    throw BadInput(text(params.where(), ": input \"", name, "\" is missing"));
  }
  return found->second;
}

Tensor BlockCall::output(const std::string& name) const {
  const auto found = outputs.find(name);
  if (found == outputs.end()) {
    throw BadInput(text(params.where(), ": output \"", name, "\" is missing"));
  }
  return found->second;
}

}  // namespace plumb
