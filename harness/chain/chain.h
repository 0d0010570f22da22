// A recording's chain on a device, judged.
//
// A chained recording has, besides the oracle's outputs of every checkpoint alone, the residual
// stream, caches, states and logits of one float64 run of the whole model. run_chain() builds that
// model, replays the run from its ids with an observer (blocks/context.h) and compares.
// chain_figures.h has the rules: a layer's error in the chain is at most
// c kappa max(the reference's, floors of the blocks so far in quadrature), c = 1.5 in 16 bits and 4
// in fp32, and at most 2 kappa its forecast sqrt((A e_before)^2 + isolated^2), A being the recorded
// amplification; where that is exceeded, simulated correct kernels say what may be
// (chain_spread.h); slots of caches that a call must leave alone are compared byte by byte.
//
// What fails alone is a kernel; what is right alone and wrong on its own inputs (the shadow run) is
// wiring; what is right on inputs that are too bad is inherited. chain_descent.h goes into the
// first of them: down the recorded checkpoints of a kernel; for wiring, through the parts that
// blocks show their observer, against the float64 block on the same inputs.
#pragma once

#include "harness/chain/chain_rows.h"
#include "harness/replay/replay.h"

namespace plumb::harness {

// Builds the model of a chained recording, replays its whole run from the ids, and compares every
// chained output with the chained oracle; where something is off, runs shadows and names the
// culprit. The result's block is "model", its outputs are "chain" and "logits". Throws nothing for
// what recording or device do: that becomes the status. Saturated in 16 bits: blind. `run_alone`
// runs its checkpoints; without one they are run in order.
CheckpointResult run_chain(const Recording& recording, Device& device, Device& oracle,
                           const ReplayOptions& options, RunAlone run_alone = {});

}  // namespace plumb::harness
