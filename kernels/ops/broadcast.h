// Elementwise calls whose inputs differ in shape: as torch does, shapes are aligned from the right,
// and axes of 1, or missing ones, are repeated.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops/check.h"
#include "kernels/ops/op_call.h"

namespace plumb {

struct BroadcastCall {
  CheckedCall call;
  std::vector<Tensor> inputs;  // views of the output's shape; strides may be 0, the last one, too
};

// Of a call that does not fit its row as it is (kernels/ops/fits.h). A UsageError names the shapes
// that do not go together, or what else is wrong.
BroadcastCall broadcast(OpId op, const Device& device, const Tensor& out,
                        std::span<const Tensor* const> inputs);

// The call with such views, but the last axes contiguous, as plugins are promised: behind one that
// is repeated comes an axis of 1. Any other call as it is.
OpCall with_equal_shapes(const OpCall& call);

}  // namespace plumb
