// JUnit XML, as CI viewers read it.
#pragma once

#include <string>
#include <vector>

#include "harness/result/result.h"
#include "harness/run/outcome.h"

namespace plumb::harness {

// A document with one testsuite per recording and device and one testcase per checkpoint and dtype:
// failure (the text of console.h) for fail and nondeterministic, skipped with the reason for blind
// and unsupported, error for the rest. Properties of a suite are what ran, and its known bugs
// nearest to passing with their checkpoints. A run that fails as a whole though no testcase does (a
// blind selection, a lost report) gets a failing testcase of its own, so that a viewer is green
// only if the exit code is 0.
std::string junit_xml(const RunInfo& run, const std::vector<CheckpointResult>& results,
                      const Outcome& outcome);

}  // namespace plumb::harness
