#include "blocks/catalog.h"

#include "blocks/attention.h"
#include "blocks/components.h"
#include "blocks/decoder_layer.h"
#include "blocks/embedding.h"
#include "blocks/glu_mlp.h"
#include "blocks/kv_cache.h"
#include "blocks/linear.h"
#include "blocks/lm_head.h"
#include "blocks/low_rank_adapter.h"
#include "blocks/mamba2.h"
#include "blocks/norms.h"
#include "blocks/rotary.h"
#include "blocks/sdpa.h"
#include "blocks/zamba2.h"
#include "kernels/error.h"

namespace plumb {

const std::vector<BlockEntry>& block_catalog() {
  using C = BitRule;
  using R = RowRule;
  static const std::vector<BlockEntry> entries = {
      {"embedding", run_embedding, C::exact, R::own, "token embedding, with Gemma's rounded scale"},
      {"rotary_frequencies", run_rotary_frequencies, C::none, R::all,
       "inverse frequencies of a rope type"},
      {"rotary_table", run_rotary_table, C::leaf, R::own, "cos and sin of positions"},
      {"rotary", run_rotary, C::leaf, R::own, "rotary embedding of q and k"},
      {"rms_norm", run_rms_norm, C::leaf, R::own, "RMSNorm, LLaMA's and Gemma's rounding order"},
      {"layer_norm", run_layer_norm, C::leaf, R::own, "LayerNorm"},
      {"linear", run_linear, C::leaf, R::own, "matrix product with optional bias"},
      {"activation", run_activation, C::leaf, R::own, "silu, gelu, gelu-tanh, tanh"},
      {"glu_activation", run_glu_activation, C::leaf, R::own, "act(gate) * up"},
      {"add", run_add, C::leaf, R::own, "residual sum"},
      {"scale", run_scale, C::leaf, R::own, "times or divided by a number"},
      {"softcap", run_softcap, C::leaf, R::own, "cap * tanh(x / cap)"},
      {"repeat_kv", run_repeat_kv, C::exact, R::own,
       "key-value heads repeated for grouped queries"},
      {"matmul", run_matmul, C::leaf, R::own, "batched product inside attention"},
      {"masked_add", run_masked_add, C::leaf, R::own, "additive mask on scores"},
      {"softmax", run_softmax, C::leaf, R::own, "softmax over keys"},
      {"kv_cache", run_kv_cache, C::exact, R::all, "dynamic cache, full and sliding"},
      {"causal_mask", run_causal_mask, C::exact, R::all,
       "causal, window and padding mask, bit for bit"},
      {"sdpa", run_sdpa, C::leaf, R::queries, "scaled dot product attention"},
      {"attention", run_attention, C::none, R::all,
       "projections, rotary, cache, sdpa, output projection"},
      {"glu_mlp", run_glu_mlp, C::cascade, R::own, "gated MLP, separate or packed gate and up"},
      {"decoder_layer", run_decoder_layer, C::none, R::all, "a LLaMA or Gemma2 layer"},
      {"low_rank_adapter", run_low_rank_adapter, C::cascade, R::own, "two products, no activation"},
      {"causal_conv1d", run_causal_conv1d, C::leaf, R::all,
       "depthwise causal convolution with its state and activation"},
      {"ssd_scan", run_ssd_scan, C::leaf, R::all, "state space scan, in chunks or one step"},
      {"gated_rms_norm", run_gated_rms_norm, C::leaf, R::own, "RMSNorm of x silu(gate), in groups"},
      {"mamba2_mixer", run_mamba2_mixer, C::none, R::all,
       "projection, convolution, scan, gated norm, projection"},
      {"mamba_layer", run_mamba_layer, C::none, R::all,
       "a Mamba2 layer, with or without attention"},
      {"shared_transformer", run_shared_transformer, C::none, R::all,
       "attention and MLP of both embeddings, without residuals"},
      {"hybrid_layer", run_hybrid_layer, C::none, R::all,
       "shared transformer, its projection, Mamba2 layer"},
      {"lm_head", run_lm_head, C::leaf, R::own, "logits: slice, product, softcap"},
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

Tensor BlockCall::optional_output(const std::string& name) const {
  const auto found = outputs.find(name);
  return found == outputs.end() ? Tensor() : found->second;
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
