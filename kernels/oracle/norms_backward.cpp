// The gradients of RMSNorm, LayerNorm and Mamba2's gated norm. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/gradients.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

double reciprocal_rms(const double* v, size_t width, double eps, const Noise& noise) {
  Sum squares;
  for (size_t i = 0; i < width; ++i) squares.add(v[i] * v[i]);
  const double mean = squares.with(noise) / static_cast<double>(width);
  return noise.function(1 / std::sqrt(mean + eps));
}

// g becomes r (g - n mean(g n)), less r mean(g) where the mean was subtracted, too.
void through_norm(double* g, const double* n, size_t width, double r, bool centred,
                  const Noise& noise) {
  Sum products, sum;
  for (size_t i = 0; i < width; ++i) {
    products.add(g[i] * n[i]);
    sum.add(g[i]);
  }
  const double slope = products.with(noise) / static_cast<double>(width);
  const double mean = centred ? sum.with(noise) / static_cast<double>(width) : 0;
  for (size_t i = 0; i < width; ++i) {
    g[i] = r * noise.sum(g[i] - mean - n[i] * slope, std::fabs(g[i]), 1);
  }
}

}  // namespace

void OracleOps::do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                     const Tensor& weight, const Tensor& d_out,
                                     const RmsNormParams& params) {
  const std::vector<double> in = values_of(x), w = values_of(weight);
  std::vector<double> values = values_of(d_out), n(w.size());
  const Rounding normalised(x.dtype(), "rms_norm_backward.normalised",
                            params.rounding == WeightRounding::before);
  const Noise noise(x.dtype());
  std::vector<Sum> by_weight(w.size());
  for (size_t row = 0; row < in.size(); row += w.size()) {
    const double r = reciprocal_rms(&in[row], w.size(), params.eps, noise);
    for (size_t c = 0; c < w.size(); ++c) {
      double& g = values[row + c];
      n[c] = in[row + c] * r;
      by_weight[c].add(g * normalised(n[c]));
      g *= params.weight_offset + w[c];
    }
    through_norm(&values[row], n.data(), w.size(), r, false, noise);
  }
  put(d_x, values, "rms_norm_backward.d_x");
  if (d_weight.defined()) {
    put(d_weight, values_with(by_weight, noise), "rms_norm_backward.d_weight");
  }
}

void OracleOps::do_layer_norm_backward(const Tensor& d_x, const Tensor& d_weight,
                                       const Tensor& d_bias, const Tensor& x, const Tensor& weight,
                                       const Tensor& d_out, double eps) {
  std::vector<double> n = values_of(x), values = values_of(d_out);
  const std::vector<double> w = values_of(weight);
  const size_t width = w.size();
  const Noise noise(x.dtype());
  std::vector<Sum> by_weight(width), by_bias(width);
  for (size_t row = 0; row < n.size(); row += width) {
    Sum sum;
    for (size_t c = row; c < row + width; ++c) sum.add(n[c]);
    const double mean = sum.with(noise) / static_cast<double>(width);
    for (size_t c = row; c < row + width; ++c) n[c] -= mean;
    const double r = reciprocal_rms(&n[row], width, eps, noise);
    for (size_t c = 0; c < width; ++c) {
      n[row + c] *= r;
      by_weight[c].add(values[row + c] * n[row + c]);
      by_bias[c].add(values[row + c]);
      values[row + c] *= w[c];
    }
    through_norm(&values[row], &n[row], width, r, true, noise);
  }
  put(d_x, values, "layer_norm_backward.d_x");
  if (d_weight.defined()) {
    put(d_weight, values_with(by_weight, noise), "layer_norm_backward.d_weight");
  }
  if (d_bias.defined()) put(d_bias, values_with(by_bias, noise), "layer_norm_backward.d_bias");
}

void OracleOps::do_gated_rms_norm_backward(const Tensor& d_x, const Tensor& d_gate,
                                           const Tensor& d_weight, const Tensor& x,
                                           const Tensor& gate, const Tensor& weight,
                                           const Tensor& d_out, const GatedRmsNormParams& params) {
  const std::vector<double> in = values_of(x), w = values_of(weight);
  std::vector<double> values = values_of(d_out), by_gate = values_of(gate);
  const size_t width = static_cast<size_t>(params.group_size);
  const Rounding normalised(x.dtype(), "gated_rms_norm_backward.normalised");
  const Noise noise(x.dtype());
  const Doubles m{0, 0, noise};
  std::vector<Sum> by_weight(w.size());
  std::vector<double> n(width), silu(width);
  for (size_t group = 0; group < in.size(); group += width) {
    for (size_t i = 0; i < width; ++i) {
      silu[i] = m.silu(by_gate[group + i]);
      n[i] = in[group + i] * silu[i];
    }
    const double r = reciprocal_rms(n.data(), width, params.eps, noise);
    for (size_t i = 0; i < width; ++i) {
      const size_t c = (group + i) % w.size();
      n[i] *= r;
      by_weight[c].add(values[group + i] * normalised(n[i]));
      values[group + i] *= w[c];
    }
    through_norm(&values[group], n.data(), width, r, false, noise);
    for (size_t i = 0; i < width; ++i) {
      const size_t at = group + i;
      by_gate[at] = values[at] * in[at] * derivative_of(m, by_gate[at], Activation::silu);
      values[at] *= silu[i];
    }
  }
  put(d_x, values, "gated_rms_norm_backward.d_x");
  put(d_gate, by_gate, "gated_rms_norm_backward.d_gate");
  if (d_weight.defined()) {
    put(d_weight, values_with(by_weight, noise), "gated_rms_norm_backward.d_weight");
  }
}

}  // namespace plumb
