// A head's logits and their cross entropy in chunks, so that the logits of all tokens are never in
// memory together. What a device does is two kernels on one chunk; the rest is ops.
#pragma once

#include <functional>

#include "kernels/core/tensor.h"

namespace plumb {

struct LogitLossKernels {
  static constexpr int64_t kStatistics = 4;
  // stats[i] = the maximum of row i, the sum of exp(logits[i] - it) without the label's, the
  // label's, and the row's loss; of no use where the label is ignored. logits [n, V], stats [n, 4]
  // f32, labels i64 [n].
  std::function<void(const Tensor& stats, const Tensor& logits, const Tensor& labels)> statistics;
  // The mean of all rows' losses, written where it belongs. stats [N, 4].
  std::function<void(const Tensor& stats)> loss = {};
  // d[i, v] = R((exp(logits[i, v] - stats[i, 0]) / (stats[i, 1] + stats[i, 2]) - (labels[i] = first
  // + v)) d_loss / count), of the label -stats[i, 1] / that sum, in which nothing cancels; count is
  // that of all labels; 0 where the label is ignored. d, logits [n, v] are the columns from `first`
  // on, and may be one tensor.
  std::function<void(const Tensor& d, const Tensor& logits, const Tensor& stats,
                     const Tensor& labels, int64_t first)>
      gradients = {};
};

}  // namespace plumb
