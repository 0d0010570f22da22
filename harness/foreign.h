// Outputs that another program computed, judged like a device's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "harness/cases.h"
#include "harness/result.h"

namespace plumb {

// The program's outputs of one checkpoint by name, in host memory: in the recording's dtype, or as
// f32 or f64 numbers that are rounded to it here. Where the program rounds is inferred from its
// bits (harness/rounding_family.h) unless a contract is demanded. BadInput when an output is
// missing or unknown.
CheckpointResult judge_foreign(const Recording& recording, const Checkpoint& checkpoint,
                               const std::map<std::string, Tensor>& outputs,
                               std::optional<RoundingPoints> demanded, Device& oracle);

}  // namespace plumb
