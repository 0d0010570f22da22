// Labels in the host's memory: ids of classes, or one number for what is left out.
#pragma once

#include "kernels/ops/ids.h"

namespace plumb {

// How many labels [N] are not `ignored`. Throws UsageError for the first other that is outside
// [0, extent).
inline int64_t count_labels(OpId op, const Tensor& labels, int64_t extent, int64_t ignored) {
  int64_t count = 0;
  for (int64_t i = 0; i < labels.dim(0); ++i) {
    const int64_t label = labels.data<int64_t>()[i];
    if (label == ignored) continue;
    if (label < 0 || label >= extent) throw UsageError(unknown_id(op, label, i, extent));
    ++count;
  }
  return count;
}

}  // namespace plumb
