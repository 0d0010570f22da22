// quantised_linear of one row: the decode shape.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/ops/quantised_call.h"

namespace plumb::PLUMB_GPU_VENDOR {

// Whether the kernel can read them: one row of floats, and words of 32 bits along the rows of the
// weight, whose groups are of whole vectors.
bool reads_words(const QuantisedLinearCall& call);
void multiply_words(const QuantisedLinearCall& call, Stream stream);

}  // namespace plumb::PLUMB_GPU_VENDOR
