// What a cache keeps of a Mamba2 layer between calls. HF: cache_utils.py, LinearAttentionLayer.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// The convolution's columns: out = state before ++ x, or, in a first call, x behind zeros up to the
// kernel's width; the state after is the last `kernel` columns of out. x [B, C, T], states
// [B, C, K].
void run_conv_cache(const BlockCall& call);

// The scan's state [B, H, P, N] replaces the one before.
void run_ssm_cache(const BlockCall& call);

}  // namespace plumb::blocks
