// Faults of the gated activation and of the MLP around it.
#include <algorithm>
#include <cmath>

#include "tests/faults/fault.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

using F = Activation;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// out = combine(function, gate, up), element by element.
Hooks combined(const std::function<double(F, double gate, double up)>& combine,
               bool truncate = false) {
  return {.gated_activation = [=](Call&, auto& out, auto& gate, auto& up, F function) {
    Values v = values_of(gate);
    const Values u = values_of(up);
    for (size_t i = 0; i < v.size(); ++i) v[i] = combine(function, v[i], u[i]);
    (truncate ? put_truncated : put)(out, v, "value");
  }};
}

// The right product of another function.
Hooks other_function(const std::function<F(F)>& pick) {
  return {.gated_activation = [pick](Call& c, auto& out, auto& gate, auto& up, F function) {
    c.ops.gated_activation(out, gate, up, pick(function));
  }};
}

F other_gelu(F function) {
  if (function == F::gelu) return F::gelu_tanh;
  return function == F::gelu_tanh ? F::gelu : function;
}

Hooks exchanged() {
  return {.gated_activation = [](Call& c, auto& out, auto& gate, auto& up, F function) {
    c.ops.gated_activation(out, up, gate, function);
  }};
}

double act_times(F function, double gate, double up) {
  return exact_activation(function, gate) * up;
}

}  // namespace

std::vector<Fault> glu_activation_faults() {
  const char* block = "glu_activation";
  return {
      {block, "gate and up exchanged", exchanged()},
      {block, "erf for tanh and tanh for erf", other_function(other_gelu)},
      {block, "silu for gelu and gelu for silu",
       other_function([](F f) { return f == F::silu ? F::gelu_tanh : F::silu; })},
      {block, "activation missing", combined([](F, double g, double u) { return g * u; })},
      {block, "activation of the product",
       combined([](F f, double g, double u) { return exact_activation(f, g * u); })},
      {block, "both activated",
       combined([](F f, double g, double u) { return act_times(f, g, exact_activation(f, u)); })},
      {block, "sum for product",
       combined([](F f, double g, double u) { return exact_activation(f, g) + u; })},
      {block, "up + 1", combined([](F f, double g, double u) { return act_times(f, g, u + 1); })},
      {block, "up ignored", combined([](F f, double g, double) { return exact_activation(f, g); })},
      {block, "relu", combined([](F, double g, double u) { return std::fmax(g, 0) * u; })},
      {block, "logistic alone", combined([](F, double g, double u) { return sigmoid(g) * u; })},
      {block, "silu: logistic of 1.001 x", combined([](F f, double g, double u) {
         return f == F::silu ? g * sigmoid(1.001 * g) * u : act_times(f, g, u);
       })},
      {block, "gate clamped to 1",
       combined([](F f, double g, double u) { return act_times(f, std::fmin(g, 1), u); })},
      {block, "activation not rounded before the product", combined(act_times), true},
      {block, "truncating store", combined(act_times, true), true},
  };
}

namespace {

// The MLP's products: gate, up, down; or the packed pair and down.
bool is_down(const Call& c, const Tensor& x) {
  const auto product = c.kept.find("product");
  return product != c.kept.end() && product->second.raw() == x.raw();
}

// Wrong linear ops, with a flag for the last one.
Hooks mlp_linear(const std::function<void(Call&, bool down, const Tensor& out, const Tensor& x,
                                          const Tensor& w, const Tensor& b)>& run) {
  Hooks hooks;
  hooks.gated_activation = [](Call& c, auto& out, auto& gate, auto& up, F function) {
    c.ops.gated_activation(out, gate, up, function);
    c.kept["product"] = out;
  };
  hooks.linear = [run](Call& c, auto& out, auto& x, auto& w, auto& b) {
    run(c, is_down(c, x), out, x, w, b);
  };
  return hooks;
}

Hooks down_spec(const LinearSpec& spec) {
  return mlp_linear([spec](Call& c, bool down, auto& out, auto& x, auto& w, auto& b) {
    down ? wrong_linear(out, x, w, b, spec) : c.ops.linear(out, x, w, b);
  });
}

Hooks up_spec(const LinearSpec& spec) {
  return mlp_linear([spec](Call& c, bool down, auto& out, auto& x, auto& w, auto& b) {
    down ? c.ops.linear(out, x, w, b) : wrong_linear(out, x, w, b, spec);
  });
}

Hooks residual_added() {
  return mlp_linear([](Call& c, bool down, auto& out, auto& x, auto& w, auto& b) {
    if (c.index == 0) c.kept["hidden"] = x;
    c.ops.linear(out, x, w, b);
    if (down) c.ops.add(out, out, c.kept.at("hidden"));
  });
}

Hooks up_with_gate_weights() {
  return mlp_linear([](Call& c, bool down, auto& out, auto& x, auto& w, auto& b) {
    if (c.index == 0) c.kept["weight"] = w;
    const bool up = c.index == 1 && !down;
    c.ops.linear(out, x, up ? c.kept.at("weight") : w, b);
  });
}

Hooks last_token_stale() {
  return mlp_linear([](Call& c, bool down, auto& out, auto& x, auto& w, auto& b) {
    c.ops.linear(out, x, w, b);
    if (!down) return;
    edit(out, [&](Values& v) {
      const auto n = static_cast<size_t>(w.dim(0));
      for (size_t i = v.size() - n; i < v.size() && i >= n; ++i) v[i] = v[i - n];
    });
  });
}

}  // namespace

std::vector<Fault> glu_mlp_faults() {
  const char* block = "glu_mlp";
  return {
      {block, "gate and up exchanged", exchanged()},
      {block, "erf for tanh and tanh for erf", other_function(other_gelu)},
      {block, "activation missing", combined([](F, double g, double u) { return g * u; })},
      {block, "activation of the product",
       combined([](F f, double g, double u) { return exact_activation(f, g * u); })},
      {block, "up ignored", combined([](F f, double g, double) { return exact_activation(f, g); })},
      {block, "up + 1", combined([](F f, double g, double u) { return act_times(f, g, u + 1); })},
      {block, "gate clamped to 1",
       combined([](F f, double g, double u) { return act_times(f, std::fmin(g, 1), u); })},
      {block, "down: last term dropped", down_spec({.dropped = 1})},
      {block, "down: bias dropped", down_spec({.bias = 0})},
      {block, "down: bias added twice", down_spec({.bias = 2})},
      {block, "down: operands in bf16", down_spec({.multiply = DType::bf16})},
      {block, "gate and up: bias dropped", up_spec({.bias = 0})},
      {block, "gate and up: last four terms dropped", up_spec({.dropped = 4})},
      {block, "up with the gate's weights", up_with_gate_weights()},
      {block, "residual added inside", residual_added()},
      {block, "last token stale", last_token_stale()},
      {block, "down: truncating store", down_spec({.truncate = true}), true},
      {block, "down: sums in the storage dtype", down_spec({.storage_sums = true}), true},
  };
}

}  // namespace plumb::harness::testing
