// The gradients of ops, each rule stated once. A rule issues ops of the same device.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "kernels/ops/op_id.h"

namespace plumb {

class GradientStep;

struct GradientRule {
  // Null: nothing comes through the op, as through a comparison.
  void (*run)(const GradientStep& step) = nullptr;
  // The operands, outputs among them, whose values the rule reads, with spaces between them.
  std::string_view reads = "";

  bool reads_value(std::string_view operand) const;
};

// Null where an op has no rule: its gradients are unsupported.
const GradientRule* gradient_rule(OpId op);

// The parts of the table, a file each.
using GradientRules = std::array<std::optional<GradientRule>, kOpCount>;
void add_elementwise_rules(GradientRules& rules);
void add_move_rules(GradientRules& rules);
void add_product_rules(GradientRules& rules);
void add_norm_rules(GradientRules& rules);
void add_sequence_rules(GradientRules& rules);

inline void set_rule(GradientRules& rules, OpId op, const GradientRule& rule) {
  rules.at(static_cast<size_t>(op)) = rule;
}

}  // namespace plumb
