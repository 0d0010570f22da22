// Whether our own float64 block runs, in addition to what a recording says of a checkpoint: it
// knows more ways to be right, and finds a parameter that is wrong in the recording.
#pragma once

#include "harness/recording/recording.h"

namespace plumb::harness {

// Affordable: where that takes no time to speak of, and for one checkpoint of each block and
// params, the cheapest, where that takes seconds; or where the recording lacks the rounded model or
// the spread of correct kernels. What fails without it is judged with it where that takes seconds.
// Never: only for what the recording lacks, o and m of a run in another dtype, m of one that
// promises to round elsewhere; kernels are not simulated, and roundings and known bugs are those
// recorded.
enum class RefereeRule { affordable, always, never };

// What the block costs in float64, in multiplications, about.
double referee_cost(const Recording& recording, const Checkpoint& checkpoint);

// Whether that is a matter of seconds, which thousands of checkpoints may not take.
bool is_dear(const Recording& recording, const Checkpoint& checkpoint);

// Whether it runs for this checkpoint; `fails`: which fails without it.
bool is_refereed(const Recording& recording, const Checkpoint& checkpoint, DType dtype,
                 RefereeRule rule, bool fails = false);

}  // namespace plumb::harness
