// Norms and softmax: of their inputs, which are reduced again.
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {
namespace {

using Step = GradientStep;

// Of the rows of x; undefined of an absent operand.
Tensor for_gradient(const Step& step, std::string_view input) {
  return step.has(input) ? step.like(step.operand(input)) : Tensor();
}

// Of weights that are not rounded, as eager attention's are float32 in both directions.
void softmax_rule(const Step& step) {
  const Tensor x = step.widened(step.value("x")), y = step.like(x), d = step.like(x);
  step.ops().softmax(y, x);
  step.ops().softmax_backward(d, y, step.widened(step.gradient()));
  step.give_rounded("x", d);
}

void rms_norm_rule(const Step& step) {
  const Tensor d_x = for_gradient(step, "x"), d_weight = for_gradient(step, "weight");
  step.ops().rms_norm_backward(d_x, d_weight, step.value("x"), step.value("weight"),
                               step.gradient(), step.get<RmsNormParams>());
  step.give("x", d_x);
  step.give("weight", d_weight);
}

void layer_norm_rule(const Step& step) {
  const Tensor d_x = for_gradient(step, "x"), d_weight = for_gradient(step, "weight"),
               d_bias = for_gradient(step, "bias");
  step.ops().layer_norm_backward(d_x, d_weight, d_bias, step.value("x"), step.value("weight"),
                                 step.gradient(), step.get<double>());
  step.give("x", d_x);
  step.give("weight", d_weight);
  step.give("bias", d_bias);
}

void gated_rms_norm_rule(const Step& step) {
  const Tensor d_x = for_gradient(step, "x"), d_gate = for_gradient(step, "gate"),
               d_weight = for_gradient(step, "weight");
  step.ops().gated_rms_norm_backward(d_x, d_gate, d_weight, step.value("x"), step.value("gate"),
                                     step.value("weight"), step.gradient(),
                                     step.get<GatedRmsNormParams>());
  step.give("x", d_x);
  step.give("gate", d_gate);
  step.give("weight", d_weight);
}

}  // namespace

void add_norm_rules(GradientRules& rules) {
  set_rule(rules, OpId::softmax, {softmax_rule, "x"});
  set_rule(rules, OpId::rms_norm, {rms_norm_rule, "x weight"});
  set_rule(rules, OpId::layer_norm, {layer_norm_rule, "x weight"});
  set_rule(rules, OpId::gated_rms_norm, {gated_rms_norm_rule, "x gate weight"});
}

}  // namespace plumb
