// The loss of a whole model as a block: what a training step goes back from.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

// The mean, over the tokens whose next label is not -100, of the cross entropy of logits and that
// label, in float32 or wider: op linear_cross_entropy, which a device with kernels for it computes
// in chunks of logits. input_ids, labels i64 [B, T] -> out, one number. Params are the
// model's configuration, weights have their names in the model. transformers: ForCausalLMLoss.
const BlockEntry& model_loss_block();

}  // namespace plumb::blocks
