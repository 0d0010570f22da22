// The causal convolution of Mamba2. Formulas and roundings: ops.h.
#include <algorithm>
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                 const Tensor& weight, const Tensor& bias,
                                 const Tensor& state_before, std::optional<Activation> function) {
  const size_t batch = extent(x, 0), tokens = extent(x, 1), channels = extent(x, 2);
  const size_t width = extent(weight, 2);
  const std::vector<double> fresh = values_of(x), w = values_of(weight);
  const std::vector<double> b =
      bias.defined() ? values_of(bias) : std::vector<double>(channels, 0.0);
  const std::vector<double> before = state_before.defined()
                                         ? values_of(state_before)
                                         : std::vector<double>(batch * channels * width, 0.0);
  // Column t of the state followed by x, for one channel.
  const auto past = [&](size_t n, size_t t, size_t c) {
    return t < width ? before[(n * channels + c) * width + t]
                     : fresh[(n * tokens + t - width) * channels + c];
  };
  const Rounding rounding(x.dtype(), "causal_conv1d.sum");
  const Noise noise(x.dtype());
  std::vector<double> values(fresh.size()), after(before.size());
  for (size_t n = 0; n < batch; ++n) {
    for (size_t c = 0; c < channels; ++c) {
      for (size_t t = 0; t < tokens; ++t) {
        double sum = b[c];
        double magnitudes = std::fabs(b[c]);
        for (size_t k = 0; k < width; ++k) {
          const double term = w[c * width + k] * past(n, t + 1 + k, c);
          sum += term;
          magnitudes += std::fabs(term);
        }
        double y = rounding(noise.sum(sum, magnitudes, width));
        if (function) {
          const double f = activate(y, *function);
          y = noise.function(f, error_scale(y, f, *function));
        }
        values[(n * tokens + t) * channels + c] = y;
      }
      for (size_t k = 0; k < width; ++k) {
        after[(n * channels + c) * width + k] = past(n, tokens + k, c);
      }
    }
  }
  put(out, values, "causal_conv1d");
  if (state_after.defined()) move(state_after, after);
}

}  // namespace plumb
