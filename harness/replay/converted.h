// Host tensors in another dtype.
#pragma once

#include "kernels/tensor.h"

namespace plumb::harness {

// A host tensor with every element converted by one rounding; the same tensor when nothing changes.
Tensor converted(const Tensor& host, DType to);
// The same of an additive mask, whose lowest finite number means "not allowed": it becomes the
// lowest of its new dtype.
Tensor converted_mask(const Tensor& host, DType to);

}  // namespace plumb::harness
