// The greedy choice among logits, on the host.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace plumb {

// The first place of the largest of `count` elements, or -1 less the place of the first NaN.
int64_t argmax(DType dtype, const void* x, int64_t count);

}  // namespace plumb
