// A summary in GitHub-flavoured Markdown, short enough for a CI step summary.
#pragma once

#include <string>
#include <vector>

#include "harness/result/result.h"
#include "harness/run/outcome.h"

namespace plumb::harness {

// The verdict and counts; a table by block, device and dtype; the first failures with the commands
// that repeat them; what no checkpoint can see; known bugs nearest to passing; what is unsupported.
// At most some 100 KiB.
std::string markdown_summary(const RunInfo& run, const std::vector<CheckpointResult>& results,
                             const Outcome& outcome);

}  // namespace plumb::harness
