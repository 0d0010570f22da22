// Context: what a block needs besides its operands.
#pragma once

#include "kernels/ops.h"

namespace plumb {

struct Context {
  Ops& ops;

  Tensor take(DType dtype, const Shape& shape) { return ops.arena().take(dtype, shape); }
};

}  // namespace plumb
