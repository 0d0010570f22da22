// Choices of a recorded call that correct kernels may make otherwise, and how much is judged.
#pragma once

#include "harness/judge/output_case.h"
#include "harness/judge/verdict.h"
#include "harness/recording/recording.h"
#include "harness/result/result.h"

namespace plumb::harness {

// Of an output of integers or bools: open elements whose value is among those that are right have
// the reference's from here on; those of which no right value is known are not judged.
void take_choices(Evidence& output, const Recording& recording, const OutputRef& ref);

// Says how many choices may fall either way and where, and how many elements are judged. A pass
// that leaves out more than it judges is none.
void note_choices(const Recording& recording, const OutputRef& ref, const Evidence& output,
                  CheckpointResult& result);
void note_judged(const OutputRef& ref, const Evidence& output, OutputVerdict& verdict,
                 CheckpointResult& result);

}  // namespace plumb::harness
