// Cross entropy and its gradient. Formulas and roundings: ops.h.
#include <algorithm>
#include <cmath>

#include "kernels/ops/labels.h"
#include "kernels/oracle/gradients.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// exp(row - its maximum) and their sum.
struct Exponentials {
  std::vector<double> values;
  double largest, sum;

  Exponentials(const double* row, size_t width, const Noise& noise)
      : values(row, row + width), largest(*std::max_element(row, row + width)) {
    Sum total;
    for (double& v : values) {
      v = noise.function(std::exp(noise.difference(v, largest)));
      total.add(v);
    }
    sum = total.with(noise);
  }
};

}  // namespace

void OracleOps::do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                                 int64_t ignored) {
  const int64_t count = count_labels(OpId::cross_entropy, labels, logits.dim(1), ignored);
  const std::vector<double> values = values_of(logits);
  const size_t width = extent(logits, 1);
  const Noise noise(logits.dtype());
  Sum losses;
  for (size_t row = 0; row < extent(labels, 0); ++row) {
    const int64_t label = labels.data<int64_t>()[row];
    if (label == ignored) continue;
    const double* of_row = &values[row * width];
    const Exponentials e(of_row, width, noise);
    const double log_sum_exp =
        noise.sum(e.largest + noise.function(std::log(e.sum)), std::fabs(e.largest), 1);
    losses.add(log_sum_exp - of_row[label]);
  }
  put(loss, {losses.with(noise) / static_cast<double>(count)}, "cross_entropy");
}

void OracleOps::do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits,
                                          const Tensor& labels, const Tensor& d_loss,
                                          int64_t ignored) {
  const int64_t count = count_labels(OpId::cross_entropy_backward, labels, logits.dim(1), ignored);
  std::vector<double> values = values_of(logits);
  const double factor = values_of(d_loss)[0] / static_cast<double>(count);
  const size_t width = extent(logits, 1);
  const Noise noise(logits.dtype());
  for (size_t row = 0; row < extent(labels, 0); ++row) {
    const int64_t label = labels.data<int64_t>()[row];
    double* of_row = &values[row * width];
    if (label == ignored) {
      std::fill(of_row, of_row + width, 0.0);
      continue;
    }
    const Exponentials e(of_row, width, noise);
    for (size_t v = 0; v < width; ++v) {
      const double share = e.values[v] / e.sum;
      const bool hit = v == static_cast<size_t>(label);
      of_row[v] = factor * (hit ? noise.difference(share, 1) : share);
    }
  }
  put(d_logits, values, "cross_entropy_backward");
}

}  // namespace plumb
