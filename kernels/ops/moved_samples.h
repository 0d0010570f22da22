// What a call of an op on operands of any shape may be: shapes that go together, and axes.
#pragma once

#include <functional>
#include <vector>

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

struct MovedSample {
  std::vector<Shape> shapes;  // of the operands
  int axis = 0;
  PerAxis per_axis = {};
  Axes axes = {};
  int64_t ids_below = 0;
};

// `choose(n)` draws one of n numbers from 0 on; extent: the only one there is, or -1.
MovedSample moved_sample(OpId op, const std::function<int(int)>& choose, int64_t extent);

}  // namespace plumb
