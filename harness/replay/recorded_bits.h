// Which rounding points of the recording the bits of a 16-bit output follow.
#pragma once

#include <optional>
#include <string>

#include "harness/judge/limit_basis.h"
#include "harness/judge/output_case.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// Holds the output to the rounding points that its bits follow, and says which. Bits are demanded
// where no sum is fed by rounded values: there the family is small, and no flip moves others. Else
// an output that follows none is judged by its errors, compared with those of all members. The
// recording has a trace.
std::string follow_recorded_bits(const Recording& recording, const Checkpoint& checkpoint,
                                 std::optional<RoundingPoints> demanded, OutputCase& output);

// What a kernel gives that keeps everything in float32: the oracle's values, rounded. `arrays`: of
// the output.
Tensor rounded_once(const Evidence& output, const CaseArrays& arrays);

}  // namespace plumb::harness
