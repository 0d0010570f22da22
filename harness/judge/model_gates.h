// Whole-model gates: what the errors of logits do to the distribution of the next token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/judge/limits.h"

namespace plumb::harness {

// The logits of one token position: y, the reference r and the oracle o, each [V].
struct TokenLogits {
  std::vector<double> y, r, o;
  std::optional<int64_t> next;  // the id that follows in the recording
};

// Kullback-Leibler divergence KL(softmax(o) || softmax(y)) in nats, exact also where y and o differ
// by roundings only. NaN where a logit is not finite.
double divergence(const std::vector<double>& o, const std::vector<double>& y);

struct ModelFigures {
  int64_t tokens = 0;
  double mean_kl = 0, max_kl = 0;                      // of y
  double reference_mean_kl = 0, reference_max_kl = 0;  // of r
  int64_t decidable = 0;        // tokens whose winner is beyond the reach of errors
  int64_t decidable_wrong = 0;  // of these, where y has another winner
  int64_t tie_wrong = 0;        // of the others, where y's winner is outside the oracle's tie set
  double spread = 0;            // RMS of o's logits around their mean, over all tokens
  double top5_overlap = 0;      // mean share of the oracle's five likeliest tokens among y's five
  double nll_difference = 0;    // mean of log p_o(next) - log p_y(next)
  double nll_standard_error = 0;
  int64_t nll_tokens = 0;  // positions whose next id is known
};

// A token is decidable where o's margin between its two largest logits exceeds 2 c `error` s,
// s = max(|o_1|, median |o| / 0.6745); closer ids form the tie set. `error`: max(M_E(r), F_E).
ModelFigures model_figures(const std::vector<TokenLogits>& tokens, double c, double error);

// Mean and largest divergence at most c^2 max(the reference's, (F spread)^2 / 2), and the winners.
// F: the floor of final norm and head.
std::vector<Gate> model_gates(const ModelFigures& figures, double c, double floor);

}  // namespace plumb::harness
