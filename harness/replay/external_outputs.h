// What another program hands over to be judged: its outputs by checkpoint and name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/io/safetensors.h"
#include "harness/recording/recording.h"
#include "harness/result/result.h"

namespace plumb::harness {

using Outputs = std::map<std::string, Tensor>;                // of one checkpoint, by name
using OutputsOfCheckpoints = std::map<std::string, Outputs>;  // by id

// Tensors are named "<checkpoint id>/<output>"; with one checkpoint selected the output's name is
// enough. BadInput for a name of no selected checkpoint, and for a file without tensors.
OutputsOfCheckpoints read_outputs(const SafetensorsFile& file, const Recording& recording,
                                  const std::vector<size_t>& selected);

// What there is to judge of one checkpoint, in the recorded dtypes; the result notes what is not
// given. BadInput where an output that has to be there is missing, or one is unknown.
Outputs given_outputs(const Recording& recording, const Checkpoint& checkpoint,
                      const Outputs& outputs, CheckpointResult& result);

}  // namespace plumb::harness
