// Outputs of a call that has no native block, judged from what the recording says of it alone.
#pragma once

#include <functional>

#include "harness/judge/output_case.h"
#include "harness/replay/external.h"

namespace plumb::harness {

// Whether a checkpoint is judged that way: a `module`, of any architecture, and gradients.
bool judged_as_recorded(const Checkpoint& checkpoint);

// o = r + delta, the rounded model, the spread of simulated kernels, other rounding points and
// planted bugs are the recording's. Outputs that are not given are not judged. Throws BadInput
// where the recording contradicts itself, Unsupported where it has no oracle or no simulated
// kernels, or does not hold the rounding that is demanded.
// `allow` adds to what right kernels may do, where it is given.
void judge_recorded(const Recording& recording, const Checkpoint& checkpoint,
                    const Outputs& outputs, const ExternalOptions& options,
                    CheckpointResult& result, const std::function<void(OutputCase&)>& allow = {});

// The same of what a device made: every output, of the recording's dtype or float64, which is held
// to o itself.
void judge_made(const Recording& recording, const Checkpoint& checkpoint, const Outputs& made,
                bool margins, const std::function<void(OutputCase&)>& allow,
                CheckpointResult& result);

}  // namespace plumb::harness
