// A recording's chain on a device, judged.
#pragma once

#include "harness/replay.h"

namespace plumb {

// Builds the model of a chained recording, replays its whole run from the ids, and compares every
// chained output with the chained oracle; where something is off, runs shadows and names the
// culprit. The result's block is "model", its outputs are "chain" and "logits". Throws nothing for
// what recording or device do: that becomes the status. Saturated in 16 bits: blind.
CheckpointResult run_chain(const Recording& recording, Device& device, Device& oracle,
                           const ReplayOptions& options);

}  // namespace plumb
