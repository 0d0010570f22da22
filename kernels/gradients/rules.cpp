#include "kernels/gradients/rules.h"

namespace plumb {
namespace {

// What is made of no float, or is a step function of them.
constexpr OpId kWithoutGradient[] = {
    OpId::causal_mask, OpId::position_ids, OpId::rotary_table, OpId::eq,    OpId::ne,
    OpId::lt,          OpId::le,           OpId::gt,           OpId::ge,    OpId::logical_and,
    OpId::logical_or,  OpId::argmin,       OpId::argmax,       OpId::any,   OpId::all,
    OpId::sign,        OpId::floor,        OpId::ceil,         OpId::round, OpId::fill,
    OpId::arange,
};

GradientRules all_rules() {
  GradientRules rules;
  for (const OpId op : kWithoutGradient) set_rule(rules, op, {});
  add_elementwise_rules(rules);
  add_move_rules(rules);
  add_product_rules(rules);
  add_norm_rules(rules);
  add_sequence_rules(rules);
  return rules;
}

}  // namespace

bool GradientRule::reads_value(std::string_view operand) const {
  for (size_t at = reads.find(operand); at != std::string_view::npos;
       at = reads.find(operand, at + 1)) {
    const size_t end = at + operand.size();
    const bool begins = at == 0 || reads[at - 1] == ' ';
    if (begins && (end == reads.size() || reads[end] == ' ')) return true;
  }
  return false;
}

const GradientRule* gradient_rule(OpId op) {
  static const GradientRules rules = all_rules();
  const auto& rule = rules.at(static_cast<size_t>(op));
  return rule ? &*rule : nullptr;
}

}  // namespace plumb
