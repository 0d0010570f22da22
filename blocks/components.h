// The operations that larger blocks are made of, as blocks of their own, so that a failure inside
// attention or an MLP has a name.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

Activation read_activation(const Params& params, std::string_view name = "function");

void run_activation(const BlockCall& call);
void run_glu_activation(const BlockCall& call);
// Of two tensors: b's outer axes of extent 1 are broadcast over a's.
void run_add(const BlockCall& call);
void run_mul(const BlockCall& call);
void run_div(const BlockCall& call);
void run_add_scalar(const BlockCall& call);
void run_scale(const BlockCall& call);
void run_softcap(const BlockCall& call);
void run_repeat_kv(const BlockCall& call);
void run_matmul(const BlockCall& call);
void run_masked_add(const BlockCall& call);
void run_softmax(const BlockCall& call);
void run_cast(const BlockCall& call);
void run_mask_fill(const BlockCall& call);
void run_position_ids(const BlockCall& call);
void run_conv1d(const BlockCall& call);
// Elements moved, never changed.
void run_concat(const BlockCall& call);
void run_slice(const BlockCall& call);
void run_permute(const BlockCall& call);

}  // namespace plumb::blocks
