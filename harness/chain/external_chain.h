// A whole model that another program ran, judged against the chained oracle as a device's chain is.
#pragma once

#include <map>
#include <string>

#include "harness/recording/recording.h"
#include "harness/result/result.h"
#include "kernels/core/device.h"

namespace plumb::harness {

// By checkpoint and output, in host memory.
using ChainOutputs = std::map<std::string, std::map<std::string, Tensor>>;

// Tensors as a program names them: "<checkpoint id>/<output>" of any chained output, "logits#2" of
// a step, or "logits" [batch, tokens of all steps, vocab]. Throws BadInput for a name that is none
// of these, a shape that is not the recorded one, and what holds no floats. Of more tokens than a
// recording keeps logits of, the last are taken.
ChainOutputs chain_outputs_of(const Recording& recording,
                              const std::map<std::string, Tensor>& named, const std::string& file);

// Judges what is there; logits alone are enough, layers say where it begins. How the program
// multiplied and rounded is not known: limits are those of a device that introduces what the
// recorded reference introduces. Where something is off, each layer whose input is there, too, is
// held to the float64 block on that input. Throws nothing for what recording or outputs are: that
// becomes the status.
CheckpointResult judge_chain(const Recording& recording, const ChainOutputs& outputs,
                             Device& oracle);

}  // namespace plumb::harness
