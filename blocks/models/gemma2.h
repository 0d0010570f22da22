// Gemma2: sliding layers, softcaps, norms around both branches.
#pragma once

#include "blocks/models/causal_lm.h"

namespace plumb::blocks {

std::unique_ptr<CausalLm> load_gemma2(const Weights& weights, const Config& config);

}  // namespace plumb::blocks
