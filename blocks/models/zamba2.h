// Zamba2: Mamba2 layers and shared transformer blocks.
#pragma once

#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_zamba2(const Weights& weights, const Config& config);

}  // namespace plumb::blocks
