// Products of matrices: sums over all tokens, and over the heads of a group, are one sum in the
// accumulator, rounded once.
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {
namespace {

using Step = GradientStep;

void linear_rule(const Step& step) {
  const Tensor d_x = step.like(step.operand("x")), d_weight = step.like(step.operand("weight")),
               d_bias = step.has("bias") ? step.like(step.operand("bias")) : Tensor();
  step.ops().linear_backward(d_x, d_weight, d_bias, step.value("x"), step.value("weight"),
                             step.gradient());
  step.give("x", d_x);
  step.give("weight", d_weight);
  step.give("bias", d_bias);
}

void matmul_rule(const Step& step) {
  const Tensor d_a = step.like(step.operand("a")), d_b = step.like(step.operand("b"));
  step.ops().matmul_backward(d_a, d_b, step.value("a"), step.value("b"), step.gradient(),
                             step.get<bool>());
  step.give("a", d_a);
  step.give("b", d_b);
}

}  // namespace

void add_product_rules(GradientRules& rules) {
  set_rule(rules, OpId::linear, {linear_rule, "x weight"});
  set_rule(rules, OpId::matmul, {matmul_rule, "a b"});
}

}  // namespace plumb
