// Whole-model gates: what the errors of logits do to the distribution of the next token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/judge/limits.h"
#include "kernels/core/dtype.h"

namespace plumb::harness {

// The logits of one token position: y, the reference r and the oracle o, each [V].
struct TokenLogits {
  std::vector<double> y, r, o;
  std::optional<int64_t> next = {};  // the id that follows in the recording
  double floor = 0;                  // F of final norm and head
  double simulated = 0;              // what deciding_error() of simulated correct kernels may reach
};

// RMS of a - b around its mean: a shift that all ids of a token share changes neither its winner
// nor its distribution, and in trained models it is most of the error.
double deciding_error(const std::vector<double>& a, const std::vector<double>& b);

// Kullback-Leibler divergence KL(softmax(o) || softmax(y)) in nats, exact also where y and o differ
// by roundings only. NaN where a logit is not finite.
double divergence(const std::vector<double>& o, const std::vector<double>& y);

struct ModelFigures {
  int64_t tokens = 0;
  double mean_kl = 0, max_kl = 0;                      // of y
  double reference_mean_kl = 0, reference_max_kl = 0;  // of r
  int64_t decidable = 0;     // tokens whose winner is beyond the reach of errors
  double winner = 0;         // how far y's is below o's in o, as a share of that reach; the largest
  std::string winner_where;  // which ids
  double spread = 0;         // RMS of o's logits around their mean, over all tokens
  double top5_overlap = 0;   // mean share of the oracle's five likeliest tokens among y's five
  double nll_difference = 0;  // mean of log p_o(next) - log p_y(next)
  double nll_standard_error = 0;
  int64_t nll_tokens = 0;  // positions whose next id is known
};

// A token is decidable where o's margin between its two largest logits exceeds what errors may do
// to the difference of two ids; of closer ids any may win. That is 4 sqrt(2) times c kappa E, c
// being that of chains and kappa of one token of `width` (the narrowest layer on the way), and the
// rounding of both to storage. E is the reference's deciding error at this very token, at least
// that of the median token (r may be exact by luck) and the floor, F times the spread of o. A token
// whose reference overflowed is left out: no limit follows from it.
ModelFigures model_figures(std::vector<TokenLogits> tokens, DType storage, int64_t width);

// Mean and largest divergence at most c^2 max(the reference's, (F spread)^2 / 2), and the winners.
// F: the floor of final norm and head.
std::vector<Gate> model_gates(const ModelFigures& figures, double c, double floor);

}  // namespace plumb::harness
