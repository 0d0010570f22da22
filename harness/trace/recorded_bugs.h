// Planted bugs as the recording has them: which would pass, and which one a failure is.
#pragma once

#include <optional>
#include <vector>

#include "harness/judge/output_case.h"
#include "harness/recording/recording.h"
#include "harness/result/result.h"

namespace plumb::harness {

std::vector<Margin> recorded_margins(const Checkpoint& checkpoint);

// The bug whose values an output has at all recorded positions, within what correct kernels are
// off from their own model; of several the one that explains most. Nothing where these values are
// hardly the bug's own. `cases` and `verdicts` are of the same outputs, in order.
std::optional<KnownBugFound> recorded_bug(const Recording& recording, const Checkpoint& checkpoint,
                                          const std::vector<OutputCase>& cases,
                                          const std::vector<OutputVerdict>& verdicts);

}  // namespace plumb::harness
