// Host tensors in another dtype.
#pragma once

#include <string>

#include "kernels/core/tensor.h"

namespace plumb::harness {

// A host tensor with every element converted by one rounding; the same tensor when nothing changes.
Tensor converted(const Tensor& host, DType to);
// The same of an additive mask, whose lowest finite number means "not allowed": it becomes the
// lowest of its new dtype.
Tensor converted_mask(const Tensor& host, DType to);
// The same whole numbers and truth values in another dtype of such; BadInput, beginning with
// `where`, for one that it cannot hold.
Tensor converted_whole(const Tensor& host, DType to, const std::string& where);

}  // namespace plumb::harness
