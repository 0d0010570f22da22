// Qwen2: LLaMA with biases of q, k and v.
#pragma once

#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_qwen2(const Weights& weights, const Config& config);

}  // namespace plumb::blocks
