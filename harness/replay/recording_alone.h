// A run of a native block judged without what our own float64 block is simulated and searched for:
// --referee none.
#pragma once

#include "harness/judge/output_case.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// Leaves of a case what the run did, what the recording says, and what it lacks: o and m in another
// dtype, m of a run that promises to round elsewhere. Nothing is simulated. A 16-bit run without m
// is held to the oracle's values, rounded once; a composite to the rounding points of the recording
// that its bits follow.
void judge_by_recording_alone(const Recording& recording, const Checkpoint& checkpoint,
                              OutputCase& output);

}  // namespace plumb::harness
