// RMSNorm. Formulas and roundings: ops.h.
#include <cmath>

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

}  // namespace plumb
