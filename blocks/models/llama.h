// LLaMA, and what its descendants change of it.
#pragma once

#include "blocks/models/decoder.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_llama(const Weights& weights, const Config& config);

// In what its descendants differ from LLaMA.
struct LlamaVariant {
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  std::vector<std::optional<int64_t>> windows = {};  // per layer; empty: all layers see all
};
std::unique_ptr<CausalLm> load_llama_like(const Weights& weights, const Config& config,
                                          const DecoderSizes& sizes, const LlamaVariant& variant);

}  // namespace plumb::blocks
