// Elementwise ops and data movement. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

double activate(double x, Activation function) {
  switch (function) {
    case Activation::silu: return x / (1 + std::exp(-x));
    // The textbook forms with 1 + erf and 1 + tanh cancel at negative x; these do not.
    case Activation::gelu: return 0.5 * x * std::erfc(-x * M_SQRT1_2);
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

namespace {

template <class F>
void map(const Tensor& out, const Tensor& x, F f) {
  std::vector<double> values = values_of(x);
  for (double& value : values) value = f(value);
  put(out, values);
}

template <class F>
void zip(const Tensor& out, const Tensor& a, const Tensor& b, F f) {
  std::vector<double> values = values_of(a);
  const std::vector<double> others = values_of(b);
  for (size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], others[i]);
  put(out, values);
}

}  // namespace

void OracleOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                             double scale) {
  const int64_t vocab = weight.dim(0), channels = weight.dim(1);
  const std::vector<double> rows = values_of(weight);
  std::vector<double> values;
  for (double id : values_of(ids)) {
    require(id >= 0 && id < static_cast<double>(vocab), "embedding", "id ", id,
            " is outside a vocabulary of ", vocab);
    for (int64_t c = 0; c < channels; ++c) {
      values.push_back(rows[static_cast<size_t>(static_cast<int64_t>(id) * channels + c)] * scale);
    }
  }
  put(out, values);
}

void OracleOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  map(out, x, [&](double v) { return activate(v, function); });
}

void OracleOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  zip(out, a, b, [](double x, double y) { return x + y; });
}

void OracleOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  zip(out, a, b, [](double x, double y) { return x * y; });
}

void OracleOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  zip(out, x, mask, [](double score, double m) { return score + m; });
}

void OracleOps::do_scale(const Tensor& out, const Tensor& x, double factor,
                         ScaleOperation operation) {
  if (operation == ScaleOperation::multiply) {
    map(out, x, [&](double v) { return v * factor; });
  } else {
    map(out, x, [&](double v) { return v / factor; });
  }
}

void OracleOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                    Activation function) {
  zip(out, gate, up, [&](double g, double u) { return activate(g, function) * u; });
}

void OracleOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  map(out, x, [&](double v) { return std::tanh(v / cap) * cap; });
}

void OracleOps::do_copy(const Tensor& out, const Tensor& x) { put(out, values_of(x)); }

void OracleOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  const int64_t repeats = out.dim(1) / x.dim(1);
  for (int64_t h = 0; h < out.dim(1); ++h) {
    put(out.slice(1, h, h + 1), values_of(x.slice(1, h / repeats, h / repeats + 1)));
  }
}

}  // namespace plumb
