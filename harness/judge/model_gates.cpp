#include "harness/judge/model_gates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness/judge/chain_figures.h"
#include "harness/judge/median.h"
#include "harness/judge/sums.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr size_t kTop = 5;

std::vector<double> probabilities(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out(logits.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::exp(logits[i] - largest);
  const double sum = chunked_sum(out.size(), [&](size_t i) { return out[i]; });
  for (double& p : out) p /= sum;
  return out;
}

double log_probability(const std::vector<double>& logits, int64_t id) {
  return std::log(probabilities(logits)[static_cast<size_t>(id)]);
}

// exp(x) - 1 - x without cancellation.
double beyond_linear(double x) {
  if (std::fabs(x) > 1e-2) return std::expm1(x) - x;
  return x * x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x / 120)));
}

// The ids of the largest logits, largest first; of equal ones the smaller id.
std::vector<size_t> largest(const std::vector<double>& logits, size_t count) {
  std::vector<size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), size_t{0});
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(count, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](size_t a, size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.erase(end, ids.end());
  return ids;
}

double variance(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = chunked_sum(values.size(), [&](size_t i) { return values[i]; }) / n;
  return chunked_sum(values.size(),
                     [&](size_t i) { return (values[i] - mean) * (values[i] - mean); }) /
         n;
}

bool is_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

// Half the distance to the next number of this dtype.
double rounding_of(double x, DType storage) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(unit_roundoff(storage), exponent - 1);
}

// What errors may do to the difference of two ids' logits, of every token.
std::vector<double> reaches(const std::vector<TokenLogits>& tokens, DType storage, int64_t width) {
  std::vector<double> own;
  for (const TokenLogits& token : tokens) own.push_back(deciding_error(token.r, token.o));
  const double typical = upper_median(own.size(), [&](size_t t) { return own[t]; });
  const double c = c_chain_of(storage) * kappa(width, std::ssize(tokens));
  std::vector<double> out;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const TokenLogits& token = tokens[t];
    const double floor = token.floor * std::sqrt(variance(token.o));
    const double error = std::max(c * std::max({own[t], typical, floor}), token.simulated);
    const double top = *std::max_element(token.o.begin(), token.o.end());
    out.push_back(kLimits.winner_deviations * std::sqrt(2.0) * error +
                  2 * rounding_of(top, storage));
  }
  return out;
}

void count_winner(ModelFigures& out, const TokenLogits& token, double allowed) {
  const std::vector<size_t> best = largest(token.o, 2);
  const size_t winner = largest(token.y, 1).front();
  const double top = token.o[best[0]];
  const bool decidable = best.size() < 2 || top - token.o[best[1]] > allowed;
  out.decidable += decidable;
  const double share = quotient(top - token.o[winner], allowed);
  if (!exceeds(share, out.winner)) return;
  out.winner = share;
  out.winner_where = text("id ", winner, " in place of ", best[0]);
}

double overlap(const TokenLogits& token) {
  const std::vector<size_t> expected = largest(token.o, kTop), found = largest(token.y, kTop);
  const auto shared = std::count_if(expected.begin(), expected.end(), [&](size_t id) {
    return std::find(found.begin(), found.end(), id) != found.end();
  });
  return static_cast<double>(shared) / static_cast<double>(expected.size());
}

}  // namespace

double divergence(const std::vector<double>& o, const std::vector<double>& y) {
  // KL = log sum_i p_i exp(d_i - m) with d = y - o and m = sum p d, where sum p (d - m) = 0.
  const std::vector<double> p = probabilities(o);
  const double mean = chunked_sum(p.size(), [&](size_t i) { return p[i] * (y[i] - o[i]); });
  return std::log1p(
      chunked_sum(p.size(), [&](size_t i) { return p[i] * beyond_linear(y[i] - o[i] - mean); }));
}

double deciding_error(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> off(a.size());
  for (size_t i = 0; i < off.size(); ++i) off[i] = a[i] - b[i];
  return std::sqrt(variance(off));
}

ModelFigures model_figures(std::vector<TokenLogits> tokens, DType storage, int64_t width) {
  std::erase_if(tokens, [](const TokenLogits& token) { return !is_finite(token.r); });
  ModelFigures out;
  out.tokens = static_cast<int64_t>(tokens.size());
  if (tokens.empty()) return out;
  const auto n = static_cast<double>(tokens.size());
  const std::vector<double> reach = reaches(tokens, storage, width);
  std::vector<double> nll;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const TokenLogits& token = tokens[t];
    const double y = divergence(token.o, token.y), r = divergence(token.o, token.r);
    out.mean_kl += y / n;
    out.reference_mean_kl += r / n;
    if (exceeds(y, out.max_kl)) out.max_kl = y;
    if (exceeds(r, out.reference_max_kl)) out.reference_max_kl = r;
    out.spread += variance(token.o) / n;
    out.top5_overlap += overlap(token) / n;
    count_winner(out, token, reach[t]);
    if (token.next) {
      nll.push_back(log_probability(token.o, *token.next) - log_probability(token.y, *token.next));
    }
  }
  out.spread = std::sqrt(out.spread);
  out.nll_tokens = static_cast<int64_t>(nll.size());
  if (nll.empty()) return out;
  const auto m = static_cast<double>(nll.size());
  out.nll_difference = chunked_sum(nll.size(), [&](size_t i) { return nll[i]; }) / m;
  out.nll_standard_error = std::sqrt(variance(nll) / std::max(1.0, m - 1));
  return out;
}

std::vector<Gate> model_gates(const ModelFigures& f, double c, double floor) {
  const double error = floor * f.spread, least = kLimits.divergence * error * error;
  return {ratio_gate("KL mean", f.mean_kl, c * c, 1, 1, f.reference_mean_kl, least, {}),
          ratio_gate("KL max", f.max_kl, c * c, 1, 1, f.reference_max_kl, least, {}),
          make_gate("top-1", f.winner, 1,
                    {{"decidable", static_cast<double>(f.decidable)},
                     {"tokens", static_cast<double>(f.tokens)}},
                    f.winner_where)};
}

}  // namespace plumb::harness
