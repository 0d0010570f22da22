// Sums, products and quotients. Each operation rounds, as torch's backward does.
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {
namespace {

using Step = GradientStep;

void pass_to(const Step& step, std::string_view input) { step.give(input, step.gradient()); }

// What `make` writes in memory like the output.
template <class Make>
void give_of_output(const Step& step, std::string_view input, Make make) {
  const Tensor d = step.like(step.operand("out"));
  make(d);
  step.give(input, d);
}

void add_rule(const Step& step) {
  pass_to(step, "a");
  pass_to(step, "b");
}

void sub_rule(const Step& step) {
  pass_to(step, "a");
  give_of_output(step, "b",
                 [&](const Tensor& d) { step.ops().unary(OpId::neg, d, step.gradient()); });
}

void mul_rule(const Step& step) {
  const Tensor g = step.gradient();
  give_of_output(step, "a", [&](const Tensor& d) { step.ops().mul(d, g, step.value("b")); });
  give_of_output(step, "b", [&](const Tensor& d) { step.ops().mul(d, g, step.value("a")); });
}

// d_b = -g ((a / b) / b)
void div_rule(const Step& step) {
  Ops& ops = step.ops();
  const Tensor g = step.gradient(), b = step.value("b");
  give_of_output(step, "a", [&](const Tensor& d) { ops.div(d, g, b); });
  give_of_output(step, "b", [&](const Tensor& d) {
    ops.div(d, step.value("a"), b);
    ops.div(d, d, b);
    ops.mul(d, d, g);
    ops.unary(OpId::neg, d, d);
  });
}

void scale_rule(const Step& step) {
  step.give_made("x", [&](const Tensor& d) {
    step.ops().scale(d, step.gradient(), step.get<double>(), step.get<ScaleOperation>());
  });
}

void scaled_add_rule(const Step& step) {
  step.give_made(
      "x", [&](const Tensor& d) { step.ops().scale(d, step.gradient(), step.get<double>()); });
  pass_to(step, "residual");
}

// d_x = R((1 - y^2) g) of y as it was stored, as torch has it.
void tanh_rule(const Step& step) {
  Ops& ops = step.ops();
  const Tensor y = step.widened(step.value("out")), d = step.like(y);
  ops.mul(d, y, y);
  ops.affine(d, d, -1, 1);
  ops.mul(d, d, step.widened(step.gradient()));
  step.give_rounded("x", d);
}

void activation_rule(const Step& step) {
  if (step.get<Activation>() == Activation::tanh) return tanh_rule(step);
  step.give_made("x", [&](const Tensor& d) {
    step.ops().activation_backward(d, step.value("x"), step.gradient(), step.get<Activation>());
  });
}

void gated_activation_rule(const Step& step) {
  const Tensor d_gate = step.like(step.operand("gate")), d_up = step.like(step.operand("up"));
  step.ops().gated_activation_backward(d_gate, d_up, step.value("gate"), step.value("up"),
                                       step.gradient(), step.get<Activation>());
  step.give("gate", d_gate);
  step.give("up", d_up);
}

void softcap_rule(const Step& step) {
  step.give_made("x", [&](const Tensor& d) {
    step.ops().binary(OpId::softcap_backward, d, step.value("x"), step.gradient(),
                      step.get<double>());
  });
}

void same_as_output(const Step& step) { pass_to(step, "x"); }

}  // namespace

void add_elementwise_rules(GradientRules& rules) {
  set_rule(rules, OpId::add, {add_rule});
  set_rule(rules, OpId::sub, {sub_rule});
  set_rule(rules, OpId::mul, {mul_rule, "a b"});
  set_rule(rules, OpId::div, {div_rule, "a b"});
  set_rule(rules, OpId::scale, {scale_rule});
  set_rule(rules, OpId::scaled_add, {scaled_add_rule});
  set_rule(rules, OpId::activation, {activation_rule, "x out"});
  set_rule(rules, OpId::gated_activation, {gated_activation_rule, "gate up"});
  set_rule(rules, OpId::softcap, {softcap_rule, "x"});
  set_rule(rules, OpId::add_scalar, {same_as_output});
  set_rule(rules, OpId::masked_add, {same_as_output});  // a mask has no gradient
}

}  // namespace plumb
