// Known bug: which of mutants.h a failure is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/referee/cases.h"
#include "harness/result/result.h"

namespace plumb::harness {

// The known bug that explains a failure: against the block with the bug instead of the right one,
// with the same roundings or others that a correct implementation may choose, all outputs pass
// every gate, and at most half as close to a limit as the right block's failure was beyond it.
// Nothing where none does (wrong in another way), or where some rows cannot be computed alone.
// `cases`: what was judged, and failed.
std::optional<KnownBugFound> nearest_known_bug(const Recording& recording,
                                               const Checkpoint& checkpoint,
                                               const blocks::BlockEntry& block,
                                               const HostOperands& operands, const RunFacts& facts,
                                               const std::vector<OutputCase>& cases,
                                               Device& oracle);

}  // namespace plumb::harness
