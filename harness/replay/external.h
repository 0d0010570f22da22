// Outputs that another program computed, judged like a device's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "harness/replay/cases.h"
#include "harness/replay/result.h"

namespace plumb {

struct ExternalOptions {
  // Where the program has to round; inferred from its bits (harness/replay/rounding_family.h)
  // otherwise.
  std::optional<RoundingPoints> demanded;
  bool margins = true;  // which known bugs would pass here (harness/replay/margins.h)
};

// What is known of a result before anything was judged.
CheckpointResult external_result(const Recording& recording, const Checkpoint& checkpoint);

// Judges the program's outputs of one checkpoint by name, in host memory: in the recording's dtype,
// or as f32 or f64 numbers that are rounded to it here. A state that is left behind ("keys_after")
// may be missing and is not judged then. BadInput when another output is missing or unknown,
// Unsupported where there is no native block.
void judge_external(const Recording& recording, const Checkpoint& checkpoint,
                    const std::map<std::string, Tensor>& outputs, const ExternalOptions& options,
                    Device& oracle, CheckpointResult& result);

}  // namespace plumb
