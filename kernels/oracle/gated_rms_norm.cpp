// The gated norm of Mamba2. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                  const Tensor& weight, const GatedRmsNormParams& params) {
  std::vector<double> values = values_of(x);
  const std::vector<double> g = values_of(gate), w = values_of(weight);
  const size_t width = static_cast<size_t>(params.group_size);
  const Rounding normalised(x.dtype(), "gated_rms_norm.normalised");
  const Noise noise(x.dtype());
  for (size_t group = 0; group < values.size(); group += width) {
    double squares = 0;
    for (size_t i = group; i < group + width; ++i) {
      values[i] *= noise.function(activate(g[i], Activation::silu));
      squares += values[i] * values[i];
    }
    const double mean = noise.sum(squares, squares, width) / static_cast<double>(width);
    const double inverse = noise.function(1 / std::sqrt(mean + params.eps));
    for (size_t i = group; i < group + width; ++i) {
      values[i] = w[i % w.size()] * normalised(values[i] * inverse);
    }
  }
  put(out, values, "gated_rms_norm");
}

}  // namespace plumb
