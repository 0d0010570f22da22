// The causal convolution of Mamba2. Formulas and roundings: ops.h.
#include <algorithm>
#include <cmath>

#include "kernels/oracle/gradients.h"
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

void OracleOps::do_causal_conv1d_backward(const Tensor& d_x, const Tensor& d_weight,
                                          const Tensor& d_bias, const Tensor& x,
                                          const Tensor& weight, const Tensor& bias,
                                          const Tensor& d_out, std::optional<Activation> function) {
  const size_t batch = extent(x, 0), tokens = extent(x, 1), channels = extent(x, 2);
  const size_t width = extent(weight, 2);
  const std::vector<double> in = values_of(x), w = values_of(weight), d = values_of(d_out);
  const std::vector<double> b =
      bias.defined() ? values_of(bias) : std::vector<double>(channels, 0.0);
  const Rounding rounding(x.dtype(), "causal_conv1d_backward.sum");
  const Noise noise(x.dtype());
  const Doubles m{0, 0, noise};
  // x[n, t - width + 1 + k, c], or 0 before the first token.
  const auto past = [&](size_t n, size_t t, size_t k, size_t c) {
    return t + k + 1 < width ? 0 : in[(n * tokens + t + k + 1 - width) * channels + c];
  };
  std::vector<double> through(in.size()), by_x(in.size());  // the gradient by the forward's sum
  std::vector<double> by_weight(channels * width), by_bias(channels);
  for (size_t c = 0; c < channels; ++c) {
    Sum of_bias;
    std::vector<Sum> of_weight(width);
    for (size_t n = 0; n < batch; ++n) {
      for (size_t t = 0; t < tokens; ++t) {
        const size_t at = (n * tokens + t) * channels + c;
        through[at] = d[at];
        if (function) {
          Sum z;
          z.add(b[c]);
          for (size_t k = 0; k < width; ++k) z.add(w[c * width + k] * past(n, t, k, c));
          through[at] *= derivative_of(m, rounding(z.with(noise)), *function);
        }
        of_bias.add(through[at]);
        for (size_t k = 0; k < width; ++k) of_weight[k].add(through[at] * past(n, t, k, c));
      }
      for (size_t t = 0; t < tokens; ++t) {
        Sum sum;
        for (size_t k = 0; k < width; ++k) {
          const size_t later = t + width - 1 - k;
          if (later >= tokens) continue;
          sum.add(w[c * width + k] * through[(n * tokens + later) * channels + c]);
        }
        by_x[(n * tokens + t) * channels + c] = sum.with(noise);
      }
    }
    by_bias[c] = of_bias.with(noise);
    for (size_t k = 0; k < width; ++k) by_weight[c * width + k] = of_weight[k].with(noise);
  }
  put(d_x, by_x, "causal_conv1d_backward.d_x");
  if (d_weight.defined()) put(d_weight, by_weight, "causal_conv1d_backward.d_weight");
  if (d_bias.defined()) put(d_bias, by_bias, "causal_conv1d_backward.d_bias");
}

}  // namespace plumb
