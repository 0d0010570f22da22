// Group norm. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, const GroupNormParams& params) {
  std::vector<double> values = values_of(x);
  const size_t channels = extent(x, 1), groups = extent(x, 0) * static_cast<size_t>(params.groups);
  const size_t planes = extent(x, 0) * channels;
  if (values.empty()) return;
  const std::vector<double> w =
      weight.defined() ? values_of(weight) : std::vector<double>(channels, 1.0);
  const std::vector<double> b =
      bias.defined() ? values_of(bias) : std::vector<double>(channels, 0.0);
  const size_t terms = values.size() / groups, plane = values.size() / planes;
  const auto count = static_cast<double>(terms);
  const Noise noise(x.dtype());
  for (size_t first = 0; first < values.size(); first += terms) {
    double mean = 0, variance = 0, magnitudes = 0;
    for (size_t i = first; i < first + terms; ++i) {
      mean += values[i] / count;
      magnitudes += std::fabs(values[i]) / count;
    }
    mean = noise.sum(mean, magnitudes, terms);
    for (size_t i = first; i < first + terms; ++i) {
      variance += (values[i] - mean) * (values[i] - mean) / count;
    }
    variance = noise.sum(variance, variance, terms);
    const double inverse = noise.function(1 / std::sqrt(variance + params.eps));
    for (size_t i = first; i < first + terms; ++i) {
      const size_t channel = i / plane % channels;
      values[i] = (values[i] - mean) * inverse * w[channel] + b[channel];
    }
  }
  put(out, values, "group_norm");
}

}  // namespace plumb
