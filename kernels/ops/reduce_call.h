// One call of a reduction.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

struct ReduceCall {
  const OpRow& row;
  Tensor out;  // with axes of 1 for those that are reduced
  Tensor x;
  Axes axes;
  int64_t count;  // elements of each result

  Reduction reduction() const { return *row.reduction; }
  // Element j of result i is at kept[i] + reduced[j], both views of x that begin where x does: the
  // first element of each result, and the elements of the first one.
  Tensor kept() const { return first(true); }
  Tensor reduced() const { return first(false); }

 private:
  Tensor first(bool of_reduced) const {
    if (count == 0) return out;  // there are none
    Tensor view = x;
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (axes.has(axis) == of_reduced) view = view.slice(axis, 0, 1);
    }
    return view;
  }
};

}  // namespace plumb
