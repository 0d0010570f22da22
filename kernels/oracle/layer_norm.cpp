// LayerNorm. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

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

}  // namespace plumb
