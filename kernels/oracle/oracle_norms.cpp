// Norms and softmax over the last axis. Formulas and roundings: ops.h.
#include <cmath>
#include <limits>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const RmsNormParams& params) {
  std::vector<double> values = values_of(x);
  const std::vector<double> w = values_of(weight);
  const Rounding normalised(x.dtype(), "rms_norm.normalised",
                            params.rounding == WeightRounding::before);
  const Rounding factor(x.dtype(), "rms_norm.factor", false);
  const Noise noise(x.dtype());
  for (size_t row = 0; row < values.size(); row += w.size()) {
    double squares = 0;
    for (size_t c = 0; c < w.size(); ++c) squares += values[row + c] * values[row + c];
    const double mean = noise.sum(squares, squares, w.size()) / static_cast<double>(w.size());
    const double inverse = noise.function(1 / std::sqrt(mean + params.eps));
    for (size_t c = 0; c < w.size(); ++c) {
      values[row + c] = factor(params.weight_offset + w[c]) * normalised(values[row + c] * inverse);
    }
  }
  put(out, values, "rms_norm");
}

void OracleOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, double eps) {
  std::vector<double> values = values_of(x);
  const std::vector<double> w = values_of(weight);
  const std::vector<double> b =
      bias.defined() ? values_of(bias) : std::vector<double>(w.size(), 0.0);
  const double count = static_cast<double>(w.size());
  const Noise noise(x.dtype());
  for (size_t row = 0; row < values.size(); row += w.size()) {
    double mean = 0, variance = 0, magnitudes = 0;
    for (size_t c = 0; c < w.size(); ++c) {
      mean += values[row + c] / count;
      magnitudes += std::fabs(values[row + c]) / count;
    }
    mean = noise.sum(mean, magnitudes, w.size());
    for (size_t c = 0; c < w.size(); ++c) {
      variance += (values[row + c] - mean) * (values[row + c] - mean) / count;
    }
    variance = noise.sum(variance, variance, w.size());
    const double inverse = noise.function(1 / std::sqrt(variance + eps));
    for (size_t c = 0; c < w.size(); ++c) {
      values[row + c] = (values[row + c] - mean) * inverse * w[c] + b[c];
    }
  }
  put(out, values, "layer_norm");
}

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
      p = std::isinf(largest) && largest < 0 && !std::isnan(p)
              ? 0
              : noise.function(std::exp(p - largest));
      sum += p;
    }
    sum = noise.sum(sum, sum, width);
    for (size_t s = 0; s < width; ++s) {
      if (sum != 0) values[row + s] /= sum;
    }
  }
  put(out, values, "softmax");
}

}  // namespace plumb
