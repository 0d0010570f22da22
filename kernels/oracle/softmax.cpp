// Softmax over the last axis. Formulas and roundings: ops.h.
#include <cmath>
#include <limits>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_softmax(const Tensor& out, const Tensor& x) {
  std::vector<double> values = values_of(x);
  const size_t width = static_cast<size_t>(x.dim(-1));
  const Noise noise(x.dtype());
  for (size_t row = 0; row < values.size(); row += width) {
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < width; ++s) largest = std::fmax(largest, values[row + s]);
    double sum = 0;
    for (size_t s = 0; s < width; ++s) {
      double& p = values[row + s];
      // A row of minus infinity has no maximum to subtract: it is defined as zeros.
      const bool empty = std::isinf(largest) && largest < 0 && !std::isnan(p);
      p = empty ? 0 : noise.function(std::exp(noise.difference(p, largest)));
      sum += p;
    }
    sum = noise.sum(sum, sum, width);
    for (size_t s = 0; s < width; ++s) {
      if (sum != 0) values[row + s] /= sum;
    }
  }
  put(out, values, "softmax");
}

void OracleOps::do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) {
  std::vector<double> values = values_of(d_out);
  const std::vector<double> weights = values_of(y);
  const size_t width = static_cast<size_t>(y.dim(-1));
  const Noise noise(y.dtype());
  for (size_t row = 0; row < values.size(); row += width) {
    double sum = 0, magnitudes = 0;
    for (size_t s = row; s < row + width; ++s) {
      sum += weights[s] * values[s];
      magnitudes += std::fabs(weights[s] * values[s]);
    }
    sum = noise.sum(sum, magnitudes, width);
    for (size_t s = row; s < row + width; ++s) {
      values[s] = weights[s] * noise.difference(values[s], sum);
    }
  }
  put(d_x, values, "softmax_backward");
}

}  // namespace plumb
