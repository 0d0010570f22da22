// Outputs that another program computed, judged like a device's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "harness/cases.h"
#include "harness/result.h"

namespace plumb {

struct ForeignOptions {
  // Where the program has to round; inferred from its bits (harness/rounding_family.h) otherwise.
  std::optional<RoundingPoints> demanded;
  bool margins = true;  // which known bugs would pass here (harness/margins.h)
};

// What is known of a result before anything was judged.
CheckpointResult foreign_to_be(const Recording& recording, const Checkpoint& checkpoint);

// Judges the program's outputs of one checkpoint by name, in host memory: in the recording's dtype,
// or as f32 or f64 numbers that are rounded to it here. A state that is left behind ("keys_after")
// may be missing and is not judged then. BadInput when another output is missing or unknown,
// Unsupported where there is no native block.
void judge_foreign(const Recording& recording, const Checkpoint& checkpoint,
                   const std::map<std::string, Tensor>& outputs, const ForeignOptions& options,
                   Device& oracle, CheckpointResult& result);

}  // namespace plumb
