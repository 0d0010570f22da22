// The native block that runs a checkpoint, forward or backward, and what it says of right kernels
// of gradients.
#pragma once

#include <functional>

#include "blocks/catalog.h"
#include "harness/execution/execute.h"
#include "harness/judge/output_case.h"

namespace plumb::harness {

// Whether it is of a whole model's gradients, from its loss through all layers.
bool is_gradient_of_loss(const Checkpoint& checkpoint);

// Null: there is none, or it has no backward.
const blocks::BlockEntry* native_block(const Checkpoint& checkpoint);

// The checkpoint as its block is given it: of a whole model's loss, with the model's configuration.
Checkpoint with_params(const Recording& recording, const Checkpoint& checkpoint);

// Lets 16-bit gradients be off by what the block, with every rounding drawn again, is off by: of a
// layer or a whole model few early roundings decide, and fused kernels draw others. Where the block
// in float64 does not make the recording's oracle, nothing is let. All arguments must outlive it.
std::function<void(OutputCase&)> redrawn_gradients(const Recording& recording,
                                                   const Checkpoint& checkpoint,
                                                   const blocks::BlockEntry& block,
                                                   const HostOperands& operands, Device& oracle);

}  // namespace plumb::harness
