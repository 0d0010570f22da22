// The reference's error: a recording states it, and also what it follows from.
#pragma once

#include "harness/judge/output_case.h"
#include "harness/judge/verdict.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// BadInput where reference and delta give another error than the recording states: one of the three
// was tampered with. `verdict` is on `output`, in the recording's dtype.
void require_stated_error(const Checkpoint& checkpoint, const Evidence& output,
                          const OutputVerdict& verdict);

}  // namespace plumb::harness
