// Embeddings, rotary embeddings, attention, convolutions and scans over tokens.
#include "kernels/gradients/rules.h"
#include "kernels/gradients/step.h"

namespace plumb {
namespace {

using Step = GradientStep;

void embedding_rule(const Step& step) {
  step.give_made("weight", [&](const Tensor& d) {
    step.ops().embedding_backward(d, step.gradient(), step.value("ids"), step.get<double>());
  });
}

void rotary_rule(const Step& step) {
  step.give_made("x", [&](const Tensor& d) {
    step.ops().rotary_backward(d, step.gradient(), step.value("cos"), step.value("sin"),
                               step.get<RotaryStyle>());
  });
}

// log_sum_exp of the scores is computed again.
void sdpa_rule(const Step& step) {
  AttentionMask mask = step.get<AttentionMask>();
  mask.key_valid = step.value("key_valid");
  mask.explicit_mask = step.value("explicit_mask");
  const Tensor d_q = step.like(step.operand("q")), d_k = step.like(step.operand("k")),
               d_v = step.like(step.operand("v"));
  step.ops().sdpa_backward(d_q, d_k, d_v, step.gradient(), step.value("q"), step.value("k"),
                           step.value("v"), step.value("out"), {}, mask, step.get<SdpaParams>());
  step.give("q", d_q);
  step.give("k", d_k);
  step.give("v", d_v);
}

// The backward of the sums alone, its function's having been rounded before, as eager code does.
void sums_backward(const Step& step, const Tensor& d_x, const Tensor& d_weight,
                   const Tensor& d_bias, const Tensor& x, const Tensor& g) {
  Ops& ops = step.ops();
  const Tensor weight = step.value("weight"), bias = step.value("bias");
  Tensor of_sums = g;
  if (const auto function = step.get<std::optional<Activation>>()) {
    const Tensor sums = step.like(x);
    of_sums = step.like(g);
    ops.causal_conv1d(sums, {}, x, weight, bias, {}, {});
    ops.activation_backward(of_sums, sums, g, *function);
  }
  ops.causal_conv1d_backward(d_x, d_weight, d_bias, x, weight, bias, of_sums, {});
}

// The columns of states as tokens in front of x's, whose gradients go where they came from; those
// of the state behind the call are its last tokens.
void conv_of_states(const Step& step, const Tensor& d_weight, const Tensor& d_bias) {
  Ops& ops = step.ops();
  const Tensor x = step.value("x"), g = step.gradient();
  const int64_t tokens = x.dim(1), taps = step.operand("weight").dim(2), all = taps + tokens;
  const auto extended = [&] { return step.take(x.dtype(), {x.dim(0), all, x.dim(2)}); };
  const Tensor wide_x = extended(), wide_g = extended(), wide_d = extended();
  if (step.has("state_before")) {
    ops.transpose(wide_x.slice(1, 0, taps), step.value("state_before"));
  } else {
    ops.fill(wide_x.slice(1, 0, taps), 0);
  }
  ops.copy(wide_x.slice(1, taps, all), x);
  ops.fill(wide_g.slice(1, 0, taps), 0);
  ops.copy(wide_g.slice(1, taps, all), g);
  sums_backward(step, wide_d, d_weight, d_bias, wide_x, wide_g);
  if (step.has("state_after") && step.has_gradient("state_after")) {
    const Tensor last = wide_d.slice(1, all - taps, all);
    const Tensor of_state = step.take(x.dtype(), last.shape());
    ops.transpose(of_state, step.gradient("state_after"));
    ops.add(last, last, of_state);
  }
  step.give("x", wide_d.slice(1, taps, all));
  step.give_made("state_before",
                 [&](const Tensor& d) { ops.transpose(d, wide_d.slice(1, 0, taps)); });
}

void causal_conv1d_rule(const Step& step) {
  const Tensor d_weight = step.like(step.operand("weight")),
               d_bias = step.has("bias") ? step.like(step.operand("bias")) : Tensor();
  const bool goes_on = step.has("state_after") && step.has_gradient("state_after");
  if (goes_on || step.has("state_before")) {
    conv_of_states(step, d_weight, d_bias);
  } else {
    step.give_made("x", [&](const Tensor& d) {
      sums_backward(step, d, d_weight, d_bias, step.value("x"), step.gradient());
    });
  }
  step.give("weight", d_weight);
  step.give("bias", d_bias);
}

void ssd_scan_rule(const Step& step) {
  const auto& params = step.get<SsdParams>();
  constexpr const char* kInputs[] = {"x", "dt", "b", "c", "a_log", "d", "dt_bias", "state"};
  const auto all = [&](auto of) {
    return SsdInputs{of(kInputs[0]), of(kInputs[1]), of(kInputs[2]), of(kInputs[3]),
                     of(kInputs[4]), of(kInputs[5]), of(kInputs[6]), of(kInputs[7])};
  };
  const SsdInputs in = all([&](const char* name) { return step.value(name); });
  const SsdInputs made = all(
      [&](const char* name) { return step.has(name) ? step.like(step.operand(name)) : Tensor(); });
  const bool goes_on = step.has("state_after") && step.has_gradient("state_after");
  step.ops().ssd_scan_backward(made, step.gradient("y"),
                               goes_on ? step.gradient("state_after") : Tensor(), in, params);
  const Tensor* gradients[] = {&made.x,     &made.dt, &made.b,       &made.c,
                               &made.a_log, &made.d,  &made.dt_bias, &made.state};
  for (size_t i = 0; i < std::size(kInputs); ++i) step.give(kInputs[i], *gradients[i]);
}

void cross_entropy_rule(const Step& step) {
  step.give_made("logits", [&](const Tensor& d) {
    step.ops().cross_entropy_backward(d, step.value("logits"), step.value("labels"),
                                      step.gradient("loss"), step.get<int64_t>());
  });
}

void linear_cross_entropy_rule(const Step& step) {
  const Tensor d_x = step.like(step.operand("x")), d_weight = step.like(step.operand("weight"));
  step.ops().linear_cross_entropy_backward(d_x, d_weight, step.value("x"), step.value("weight"),
                                           step.value("labels"), step.gradient("loss"),
                                           step.get<LogitLossParams>());
  step.give("x", d_x);
  step.give("weight", d_weight);
}

}  // namespace

void add_sequence_rules(GradientRules& rules) {
  set_rule(rules, OpId::embedding, {embedding_rule, "ids"});
  set_rule(rules, OpId::rotary, {rotary_rule, "cos sin"});
  set_rule(rules, OpId::sdpa, {sdpa_rule, "q k v out key_valid explicit_mask"});
  set_rule(rules, OpId::causal_conv1d, {causal_conv1d_rule, "x weight bias state_before"});
  set_rule(rules, OpId::ssd_scan, {ssd_scan_rule, "x dt b c a_log d dt_bias state"});
  set_rule(rules, OpId::cross_entropy, {cross_entropy_rule, "logits labels"});
  set_rule(rules, OpId::linear_cross_entropy, {linear_cross_entropy_rule, "x weight labels"});
}

}  // namespace plumb
