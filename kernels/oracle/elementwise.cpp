// Elementwise ops and copies. Formulas and roundings: ops.h.
#include <cmath>

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

double error_scale(double x, double y, Activation function) {
  return function == Activation::gelu || function == Activation::gelu_tanh ? x : y;
}

double activate_in_parts(double x, Activation function, DType storage) {
  const auto low = [&](double v) { return round_to(storage, v); };
  const auto gate = [&](double inner) { return low(low(0.5 * x) * low(1 + low(inner))); };
  switch (function) {
    case Activation::silu: return low(x * low(1 / (1 + std::exp(-x))));
    case Activation::gelu: return gate(std::erf(low(x * M_SQRT1_2)));
    case Activation::gelu_tanh: {
      const double cube = low(low(low(x * x) * x) * 0.044715);
      return gate(std::tanh(low(low(x + cube) * M_2_SQRTPI * M_SQRT1_2)));
    }
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

namespace {

template <class F>
void map(const Tensor& out, const Tensor& x, std::string_view name, F f) {
  std::vector<double> values = values_of(x);
  for (double& value : values) value = f(value);
  put(out, values, name);
}

template <class F>
void zip(const Tensor& out, const Tensor& a, const Tensor& b, std::string_view name, F f) {
  std::vector<double> values = values_of(a);
  const std::vector<double> others = values_of(b);
  for (size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], others[i]);
  put(out, values, name);
}

}  // namespace

void OracleOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  const bool parts = rounds_here(x.dtype(), "activation.parts", false);
  const Noise noise(x.dtype());
  map(out, x, "activation", [&](double v) {
    if (parts) return activate_in_parts(v, function, x.dtype());
    const double y = activate(v, function);
    return noise.function(y, error_scale(v, y, function));
  });
}

void OracleOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  zip(out, a, b, "add", [](double x, double y) { return x + y; });
}

void OracleOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  zip(out, a, b, "mul", [](double x, double y) { return x * y; });
}

void OracleOps::do_div(const Tensor& out, const Tensor& a, const Tensor& b) {
  zip(out, a, b, "div", [](double x, double y) { return x / y; });
}

void OracleOps::do_add_scalar(const Tensor& out, const Tensor& x, double value) {
  map(out, x, "add_scalar", [&](double v) { return v + value; });
}

void OracleOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  const double lowest = -info(mask.dtype()).max;
  zip(out, x, mask, "masked_add", [&](double score, double m) {
    if (m > lowest) note_score(score);
    return score + m;
  });
}

void OracleOps::do_scale(const Tensor& out, const Tensor& x, double factor,
                         ScaleOperation operation) {
  if (operation == ScaleOperation::multiply) {
    map(out, x, "scale", [&](double v) { return v * factor; });
  } else {
    map(out, x, "scale", [&](double v) { return v / factor; });
  }
}

void OracleOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                    Activation function) {
  const Noise noise(gate.dtype());
  zip(out, gate, up, "gated_activation", [&](double g, double u) {
    const double y = activate(g, function);
    return noise.function(y, error_scale(g, y, function)) * u;
  });
}

void OracleOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  const Noise noise(x.dtype());
  map(out, x, "softcap", [&](double v) { return noise.function(std::tanh(v / cap)) * cap; });
}

void OracleOps::do_copy(const Tensor& out, const Tensor& x) { move(out, values_of(x)); }

void OracleOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  const int64_t repeats = out.dim(1) / x.dim(1);
  for (int64_t h = 0; h < out.dim(1); ++h) {
    move(out.slice(1, h, h + 1), values_of(x.slice(1, h / repeats, h / repeats + 1)));
  }
}

}  // namespace plumb
