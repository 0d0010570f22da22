// Mistral: LLaMA with a sliding window.
#pragma once

#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_mistral(const Weights& weights, const Config& config);

}  // namespace plumb::blocks
