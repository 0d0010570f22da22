// Explain: what a failure looks like, not only how large it is.
#pragma once

#include <string>
#include <vector>

#include "harness/referee/cases.h"
#include "harness/result/result.h"

namespace plumb::harness {

// Adds to a result that failed which roundings its 16-bit outputs follow (CheckpointResult::
// diagnosis, and a detail), and the known bug that it is, which the reason then says, too.
// `cases`: what result.outputs were judged from.
void explain_failure(const Recording& recording, const Checkpoint& checkpoint,
                     const blocks::BlockEntry& block, const HostOperands& operands,
                     const RunFacts& facts, const std::vector<OutputCase>& cases, Device& oracle,
                     CheckpointResult& result);

// Why a failure on this device is not explained, in words: that would take seconds, and the first
// two whose ids differ from it in numbers alone are. Empty where it is to be explained; to be asked
// in the order of the recording.
std::string why_unexplained(const Recording& recording, const Checkpoint& checkpoint,
                            const std::string& device);

}  // namespace plumb::harness
