// Faults of the activations and of softcap, element by element.
#include <algorithm>
#include <cmath>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

using F = Activation;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu_tanh_with(double x, double root, double cubic) {
  return x / (1 + std::exp(-2 * root * (x + cubic * x * x * x)));
}

// `of` computed by f, the other functions right.
Fault function_fault(F of, const char* name, const std::function<double(double)>& f) {
  return {"activation", name, {.activation = [=](Call& c, auto& out, auto& x, F function) {
            if (function != of) return c.ops.activation(out, x, function);
            put(out, values_of(mapped(c.ops, x, f)));
          }}};
}

Fault output_fault(const char* name,
                   const std::function<void(Values& y, const Values& x, size_t width)>& wrong) {
  return {"activation", name, {.activation = [=](Call& c, auto& out, auto& x, F function) {
            const Values in = values_of(x);
            c.ops.activation(out, x, function);
            edit(out, [&](Values& y) { wrong(y, in, static_cast<size_t>(x.dim(-1))); });
          }}};
}

Fault softcap_fault(const char* name, const std::function<double(double x, double cap)>& f) {
  return {"softcap", name, {.softcap = [f](Call& c, auto& out, auto& x, double cap) {
            put(out, values_of(mapped(c.ops, x, [&](double v) { return f(v, cap); })));
          }}};
}

double capped(double x, double cap) { return cap * std::tanh(x / cap); }

}  // namespace

std::vector<Fault> activation_faults() {
  const double root = std::sqrt(2 / M_PI);
  return {
      function_fault(F::silu, "silu: gelu", [](double x) { return exact_activation(F::gelu, x); }),
      function_fault(F::silu, "silu: relu", [](double x) { return std::fmax(x, 0); }),
      function_fault(F::silu, "silu: logistic of 1.001 x",
                     [](double x) { return x * sigmoid(1.001 * x); }),
      function_fault(F::silu, "silu: logistic alone", sigmoid),
      function_fault(F::silu, "silu: hard swish",
                     [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }),
      function_fault(F::gelu, "gelu: tanh form",
                     [](double x) { return exact_activation(F::gelu_tanh, x); }),
      function_fault(F::gelu, "gelu: quick gelu", [](double x) { return x * sigmoid(1.702 * x); }),
      function_fault(F::gelu_tanh, "gelu_tanh: erf form",
                     [](double x) { return exact_activation(F::gelu, x); }),
      function_fault(F::gelu_tanh, "gelu_tanh: cubic coefficient 0.0447",
                     [=](double x) { return gelu_tanh_with(x, root, 0.0447); }),
      function_fault(F::gelu_tanh, "gelu_tanh: cubic term missing",
                     [=](double x) { return gelu_tanh_with(x, root, 0); }),
      function_fault(F::gelu_tanh, "gelu_tanh: root of 2 / pi as 0.8",
                     [](double x) { return gelu_tanh_with(x, 0.8, 0.044715); }),
      function_fault(F::tanh, "tanh: clamped line",
                     [](double x) { return std::clamp(x, -1.0, 1.0); }),
      function_fault(F::tanh, "tanh: logistic", sigmoid),
      {"activation",
       "applied twice",
       {.activation =
            [](Call& c, auto& out, auto& x, F function) {
              c.ops.activation(out, x, function);
              c.ops.activation(out, out, function);
            }}},
      output_fault("zero below -1",
                   [](Values& y, const Values& x, size_t) {
                     for (size_t i = 0; i < y.size(); ++i) y[i] = x[i] < -1 ? 0 : y[i];
                   }),
      output_fault("last column left as it was",
                   [](Values& y, const Values& x, size_t width) {
                     for (size_t i = width - 1; i < y.size(); i += width) y[i] = x[i];
                   }),
      output_fault("computed in bf16",
                   [](Values& y, const Values&, size_t) {
                     for (double& v : y) v = round_to(DType::bf16, v);
                   }),
      {"activation",
       "truncating store",
       {.activation =
            [](Call&, auto& out, auto& x, F function) {
              Values v = values_of(x);
              for (double& value : v) value = exact_activation(function, value);
              put_truncated(out, v);
            }},
       true},
  };
}

std::vector<Fault> softcap_faults() {
  return {
      softcap_fault("missing", [](double x, double) { return x; }),
      softcap_fault("rescale missing", [](double x, double cap) { return std::tanh(x / cap); }),
      softcap_fault("division missing", [](double x, double cap) { return cap * std::tanh(x); }),
      softcap_fault("clamped", [](double x, double cap) { return std::clamp(x, -cap, cap); }),
      softcap_fault("cap 1 % too large",
                    [](double x, double cap) { return capped(x, 1.01 * cap); }),
      softcap_fault("cap doubled", [](double x, double cap) { return capped(x, 2 * cap); }),
      softcap_fault("applied twice",
                    [](double x, double cap) { return capped(capped(x, cap), cap); }),
      softcap_fault("softsign for tanh",
                    [](double x, double cap) { return x / (1 + std::fabs(x / cap)); }),
      softcap_fault("positive values only",
                    [](double x, double cap) { return x > 0 ? capped(x, cap) : x; }),
      softcap_fault("largest values only",
                    [](double x, double cap) { return std::fabs(x) > cap ? capped(x, cap) : x; }),
      softcap_fault("computed in bf16",
                    [](double x, double cap) { return round_to(DType::bf16, capped(x, cap)); }),
      {"softcap",
       "last column not capped",
       {.softcap =
            [](Call& c, auto& out, auto& x, double cap) {
              const Values in = values_of(x);
              c.ops.softcap(out, x, cap);
              const auto width = static_cast<size_t>(x.dim(-1));
              edit(out, [&](Values& y) {
                for (size_t i = width - 1; i < y.size(); i += width) y[i] = in[i];
              });
            }}},
      {"softcap",
       "rounded once, at the end",
       {.softcap =
            [](Call& c, auto& out, auto& x, double cap) {
              put(out, values_of(mapped(c.ops, x, [&](double v) { return capped(v, cap); })));
            }},
       true},
      {"softcap",
       "truncating store",
       {.softcap =
            [](Call&, auto& out, auto& x, double cap) {
              Values v = values_of(x);
              for (double& value : v) value = capped(value, cap);
              put_truncated(out, v);
            }},
       true},
  };
}

}  // namespace plumb::harness::testing
