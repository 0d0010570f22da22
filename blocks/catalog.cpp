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
#include "blocks/op.h"
#include "blocks/rotary.h"
#include "blocks/sdpa.h"
#include "blocks/state_cache.h"
#include "blocks/zamba2.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

const std::vector<BlockEntry>& block_catalog() {
  using C = BitRule;
  using R = RowRule;
  constexpr bool kConstant = false;  // has_backward
  static const std::vector<BlockEntry> entries = {
      {"embedding", run_embedding, C::exact, R::own, "token embedding, with Gemma's rounded scale"},
      {"rotary_frequencies", run_rotary_frequencies, C::none, R::all,
       "inverse frequencies of a rope type", kConstant},
      {"rotary_table", run_rotary_table, C::leaf, R::own, "cos and sin of positions", kConstant},
      {"rotary", run_rotary, C::leaf, R::own, "rotary embedding of q and k"},
      {"rms_norm", run_rms_norm, C::scaled, R::own, "RMSNorm, LLaMA's and Gemma's rounding order"},
      {"layer_norm", run_layer_norm, C::scaled, R::own, "LayerNorm"},
      {"linear", run_linear, C::leaf, R::own, "matrix product with optional bias"},
      {"activation", run_activation, C::leaf, R::own, "silu, gelu, gelu-tanh, tanh"},
      {"glu_activation", run_glu_activation, C::leaf, R::own, "act(gate) * up"},
      {"add", run_add, C::leaf, R::own, "residual sum"},
      {"mul", run_mul, C::leaf, R::own, "product of two tensors"},
      {"div", run_div, C::leaf, R::own, "quotient of two tensors"},
      {"add_scalar", run_add_scalar, C::leaf, R::own, "plus a number"},
      {"scale", run_scale, C::leaf, R::own, "times or divided by a number"},
      {"softcap", run_softcap, C::leaf, R::own, "cap * tanh(x / cap)"},
      {"repeat_kv", run_repeat_kv, C::exact, R::own,
       "key-value heads repeated for grouped queries"},
      {"concat", run_concat, C::exact, R::all, "two tensors joined along an axis"},
      {"slice", run_slice, C::exact, R::all, "a part of an axis"},
      {"permute", run_permute, C::exact, R::all, "axes in another order"},
      {"cast", run_cast, C::exact, R::own, "from one float format to another"},
      {"mask_fill", run_mask_fill, C::exact, R::all, "a number where a mask is true"},
      {"position_ids", run_position_ids, C::exact, R::all,
       "positions of tokens, counted past padding", kConstant},
      {"conv1d", run_conv1d, C::leaf, R::all, "depthwise convolution over tokens"},
      {"matmul", run_matmul, C::leaf, R::own, "batched product inside attention"},
      {"masked_add", run_masked_add, C::leaf, R::own, "additive mask on scores"},
      {"softmax", run_softmax, C::leaf, R::own, "softmax over keys"},
      {"kv_cache", run_kv_cache, C::exact, R::all, "dynamic cache, full and sliding", kConstant},
      {"static_kv_cache", run_static_kv_cache, C::exact, R::all,
       "static cache, full and sliding: buffers of fixed length", kConstant},
      {"conv_cache", run_conv_cache, C::exact, R::all,
       "the last columns that a causal convolution saw", kConstant},
      {"ssm_cache", run_ssm_cache, C::exact, R::all, "the state that a scan left", kConstant},
      {"causal_mask", run_causal_mask, C::exact, R::all,
       "causal, window and padding mask, bit for bit", kConstant},
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

const std::vector<BlockSuite>& block_suites() {
  static const std::vector<BlockSuite> suites = {
      {"components",
       {"softmax", "concat", "slice", "permute", "repeat_kv", "cast", "add", "mul", "div",
        "add_scalar", "scale", "mask_fill", "position_ids", "conv1d"},
       "single operations, which larger blocks are made of"},
      {"caches",
       {"kv_cache", "static_kv_cache", "conv_cache", "ssm_cache"},
       "what stays of a sequence between calls"},
  };
  return suites;
}

const BlockEntry* find_block(std::string_view name) {
  for (const BlockEntry& entry : block_catalog()) {
    if (entry.name == name) return &entry;
  }
  static const BlockEntry op = {kOpBlock, run_op, BitRule::leaf, RowRule::all,
                                "one op of the table"};
  return name == kOpBlock ? &op : nullptr;
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

}  // namespace plumb::blocks
