// Copies, casts and lookups: gradients go where the values came from.
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {
namespace {

using Step = GradientStep;

void copy_rule(const Step& step) { step.give("x", step.gradient()); }

void cast_rule(const Step& step) {
  if (!is_floating(step.operand("x").dtype())) return;
  step.give_made("x", [&](const Tensor& d) { step.ops().cast(d, step.gradient()); });
}

void transpose_rule(const Step& step) {
  step.give_made("x", [&](const Tensor& d) { step.ops().transpose(d, step.gradient()); });
}

void permute_rule(const Step& step) {
  const PerAxis& axes = step.get<PerAxis>();
  PerAxis back;
  for (int i = 0; i < step.operand("x").rank(); ++i) back[static_cast<int>(axes[i])] = i;
  step.give_made("x", [&](const Tensor& d) { step.ops().permute(d, step.gradient(), back); });
}

void pad_rule(const Step& step) {
  PerAxis left = step.get<PerAxis>();
  for (int64_t& by : left.at) by = -by;
  step.give_made("x", [&](const Tensor& d) { step.ops().pad(d, step.gradient(), left, 0); });
}

void flip_rule(const Step& step) {
  step.give_made("x",
                 [&](const Tensor& d) { step.ops().flip(d, step.gradient(), step.get<Axes>()); });
}

void roll_rule(const Step& step) {
  PerAxis shifts = step.get<PerAxis>();
  for (int64_t& by : shifts.at) by = -by;
  step.give_made("x", [&](const Tensor& d) { step.ops().roll(d, step.gradient(), shifts); });
}

void concat_rule(const Step& step) {
  const int axis = static_cast<int>(step.get<int64_t>());
  const Tensor g = step.gradient();
  const int64_t first = step.operand("a").dim(axis);
  step.give("a", g.slice(axis, 0, first));
  step.give("b", g.slice(axis, first, g.dim(axis)));
}

void mask_rows_rule(const Step& step) {
  step.give_made(
      "x", [&](const Tensor& d) { step.ops().mask_rows(d, step.gradient(), step.value("valid")); });
}

void mask_fill_rule(const Step& step) {
  step.give_made("x", [&](const Tensor& d) {
    step.ops().mask_fill(d, step.gradient(), step.value("mask"), 0);
  });
}

// The sum over the heads of a group, rounded once.
void repeat_heads_rule(const Step& step) {
  const Tensor g = step.gradient(), &x = step.operand("x");
  step.give_made("x", [&](const Tensor& d) {
    const Tensor groups = g.split(1, g.dim(1) / x.dim(1));
    step.ops().reduce(OpId::sum, d, groups, {2});
  });
}

}  // namespace

void add_move_rules(GradientRules& rules) {
  set_rule(rules, OpId::copy, {copy_rule});
  set_rule(rules, OpId::cast, {cast_rule});
  set_rule(rules, OpId::transpose, {transpose_rule});
  set_rule(rules, OpId::permute, {permute_rule});
  set_rule(rules, OpId::pad, {pad_rule});
  set_rule(rules, OpId::flip, {flip_rule});
  set_rule(rules, OpId::roll, {roll_rule});
  set_rule(rules, OpId::concat, {concat_rule});
  set_rule(rules, OpId::mask_rows, {mask_rows_rule, "valid"});
  set_rule(rules, OpId::mask_fill, {mask_fill_rule, "mask"});
  set_rule(rules, OpId::repeat_heads, {repeat_heads_rule});
}

}  // namespace plumb
