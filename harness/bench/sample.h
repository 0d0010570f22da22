// Samples: few elements of large tensors, enough to tell a wrong kernel.
#pragma once

#include "kernels/core/device.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {

// Indices first, first + step, ... of an axis, spread over it; the last index is always one.
struct Picks {
  int64_t first = 0, step = 1, count = 0;
  int64_t operator[](int64_t i) const { return first + i * step; }
};
Picks picks(int64_t extent, int64_t most);

// The picked elements along an axis (any but the last); an axis of extent 1 stays.
Tensor picked(const Tensor& t, int axis, const Picks& at);
// The picked elements along the last axis of a host tensor.
Tensor picked_columns(const Tensor& host, const Picks& at);

// A device tensor or view as a contiguous host tensor; undefined stays undefined.
Tensor collected(Ops& ops, const Tensor& view);

}  // namespace plumb::harness
