// Outputs that another program computed, judged like a device's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "harness/replay/external_outputs.h"
#include "kernels/core/device.h"
#include "kernels/ops/contract.h"

namespace plumb::harness {

struct ExternalOptions {
  // Where the program has to round; inferred from its bits (harness/referee/rounding_family.h)
  // otherwise.
  std::optional<RoundingPoints> demanded;
  bool margins = true;  // which known bugs would pass here (harness/referee/margins.h)
  bool alone = false;   // by what the recording says alone, native blocks, too
};

// Judges the program's outputs of one checkpoint by name, in host memory: in the recording's dtype,
// or as f32 or f64 numbers that are rounded to it here. A state that is left behind ("keys_after")
// may be missing and is not judged then. Where there is no native block, by what the recording says
// alone (harness/replay/recorded.h). BadInput when another output is missing or unknown.
void judge_external(const Recording& recording, const Checkpoint& checkpoint,
                    const Outputs& outputs, const ExternalOptions& options, Device& oracle,
                    CheckpointResult& result);

}  // namespace plumb::harness
