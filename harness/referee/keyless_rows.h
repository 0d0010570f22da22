// Rows of a softmax in which no score is left: every one is minus infinity. They have no value.
// torch gives NaN there (0 / 0), kernels that guard the division give zeros; models do not use
// them.
#pragma once

#include "harness/judge/output_case.h"
#include "kernels/core/tensor.h"

namespace plumb::harness {

// Sets aside (`valid`) the rows of minus infinity in `scores` that are NaN or zeros in y as a
// whole; they are zeros from here on. Whatever else y has there is held to the recording, as all
// other rows are. `scores` has y's shape; both are contiguous, in host memory.
void set_keyless_rows_aside(Evidence& output, const Tensor& scores);

}  // namespace plumb::harness
