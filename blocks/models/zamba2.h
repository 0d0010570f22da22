#pragma once

#include "blocks/models/causal_lm.h"

namespace plumb {

std::unique_ptr<CausalLm> load_zamba2(const Weights& weights, const Config& config);

}  // namespace plumb
