// Elementwise ops and copies. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/doubles.h"
#include "kernels/oracle/oracle_ops.h"
#include "kernels/oracle/wider.h"

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

double activate_in_parts(double x, Activation function, DType storage, bool rounds_exponential) {
  const auto low = [&](double v) { return round_to(storage, v); };
  const auto gate = [&](double inner) { return low(low(0.5 * x) * low(1 + low(inner))); };
  switch (function) {
    case Activation::silu: {
      if (!rounds_exponential) return low(x * low(1 / (1 + std::exp(-x))));
      const double small = 1 / (1 + low(std::exp(std::fabs(x))));
      return low(x * low(x < 0 ? small : 1 - small));
    }
    case Activation::gelu: return gate(std::erf(low(x * M_SQRT1_2)));
    case Activation::gelu_tanh: {
      const double cube = low(low(low(x * x) * x) * 0.044715);
      return gate(std::tanh(low(low(x + cube) * M_2_SQRTPI * M_SQRT1_2)));
    }
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

void OracleOps::do_map(const MapCall& call) {
  if (wider::has(call.storage())) return wider::map(call);
  std::vector<double> values = values_of(call.a);
  const std::vector<double> second = call.b ? values_of(*call.b) : std::vector<double>();
  const std::vector<double> third = call.c ? values_of(*call.c) : std::vector<double>();
  const DType storage = call.storage();
  const bool alone = call.row.id == OpId::activation;
  const bool exponential = alone && activation_of(call.formula) == Activation::silu &&
                           rounds_here(storage, "activation.exponential", false);
  if (alone && rounds_here(storage, "activation.parts", false)) {
    const Activation name = activation_of(call.formula);
    for (double& x : values) x = activate_in_parts(x, name, storage, exponential);
  } else {
    const Noise noise(storage);
    const Doubles m{call.number, call.shift, noise};
    with_formula(call.formula, [&]<class F>() {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (F::kInputs == 1) values[i] = F::of(m, values[i]);
        else if constexpr (F::kInputs == 2) values[i] = F::of(m, values[i], second[i]);
        else values[i] = F::of(m, values[i], second[i], third[i]);
      }
    });
  }
  if (gives_bool(call.row.id)) move(call.out, values);
  else put(call.out, values, call.row.name);
}

void OracleOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  const double lowest = -info(mask.dtype()).max;
  std::vector<double> values = values_of(x);
  const std::vector<double> others = values_of(mask);
  for (size_t i = 0; i < values.size(); ++i) {
    if (others[i] > lowest) note_score(values[i]);
    values[i] += others[i];
  }
  put(out, values, "masked_add");
}

void OracleOps::do_copy(const Tensor& out, const Tensor& x) {
  if (x.dtype() == DType::i64) return wider::copy(out, x);
  move(out, values_of(x));
}

void OracleOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  const int64_t repeats = out.dim(1) / x.dim(1);
  for (int64_t h = 0; h < out.dim(1); ++h) {
    move(out.slice(1, h, h + 1), values_of(x.slice(1, h / repeats, h / repeats + 1)));
  }
}

}  // namespace plumb
