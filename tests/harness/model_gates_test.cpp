// Divergence and winners of made-up logits.
#include "harness/judge/model_gates.h"

#include <cmath>

#include "harness/judge/chain_figures.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

using Logits = std::vector<double>;

double plain_divergence(const Logits& o, const Logits& y) {
  double so = 0, sy = 0, out = 0;
  for (size_t i = 0; i < o.size(); ++i) so += std::exp(o[i]), sy += std::exp(y[i]);
  for (size_t i = 0; i < o.size(); ++i) {
    out += std::exp(o[i]) / so * (o[i] - std::log(so) - y[i] + std::log(sy));
  }
  return out;
}

Gate gate(const std::vector<Gate>& gates, const char* name) {
  for (const Gate& g : gates) {
    if (g.name == name) return g;
  }
  throw std::runtime_error(name);
}

TEST_CASE("divergence: as the formula says, and exact for roundings") {
  const Logits o = {1, 2, -1, 0.5}, y = {1.5, 1.75, -2, 0.25};
  CHECK(divergence(o, y) == Approx(plain_divergence(o, y)).epsilon(1e-12));
  CHECK(divergence(o, o) == 0);
  Logits shifted = o;
  for (double& value : shifted) value += 8;  // the same distribution
  CHECK(std::fabs(divergence(o, shifted)) < 1e-15);
  // Two equally likely ids, one off by e: KL = e^2 / 8 to the first order.
  CHECK(divergence({0, 0}, {0, 1e-9}) == Approx(1e-18 / 8).epsilon(1e-6));
  CHECK(std::isnan(divergence(o, {1, 2, std::nan(""), 0})));
}

constexpr DType kWide = DType::f32, kNarrow = DType::bf16;

TokenLogits exact_reference(const Logits& o, double floor) {
  return {.y = o, .r = o, .o = o, .next = 0, .floor = floor};
}

TEST_CASE("a winner beyond the reach of errors must be the oracle's") {
  // 4 sqrt(2) x 4 (of float32) x F x spread of o: 2, the margin, at F = 0.0709.
  TokenLogits token = exact_reference({3, 1, 0}, 0.07);
  CHECK(model_figures({token}, kWide, kAnyWidth).decidable == 1);
  token.floor = 0.072;
  CHECK(model_figures({token}, kWide, kAnyWidth).decidable == 0);
  token.y = {1, 3, 0};
  const auto judged = [&] {
    return gate(model_gates(model_figures({token}, kWide, kAnyWidth), 2, 0.1), "top-1");
  };
  CHECK(judged().passed);  // id 1 is within the reach of errors
  token.y = {0, 1, 3};     // id 2 does not
  CHECK_FALSE(judged().passed);
  CHECK(judged().where == "id 2 in place of 0");
  token.y = {1, 3, 0};
  token.floor = 0.01;
  CHECK_FALSE(judged().passed);
  CHECK(judged().statistic == Approx(0.0709 / 0.01).epsilon(1e-2));
  token.simulated = 1;  // what simulated kernels may be off is no fault
  CHECK(judged().passed);
}

TEST_CASE("a token's winner is decided by the errors of its own logits, without what all share") {
  TokenLogits exact = exact_reference({3, 1, 0, 0}, 0), bad = exact;
  bad.r = {3.5, 0.5, 0.5, -0.5};
  CHECK(model_figures({exact, bad, exact}, kWide, kAnyWidth).decidable == 2);
  CHECK(model_figures({exact, bad, bad}, kWide, kAnyWidth).decidable == 0);  // the median counts
  for (double& logit : exact.r) logit += 100;
  CHECK(model_figures({exact}, kWide, kAnyWidth).decidable == 1);
  CHECK(deciding_error(exact.r, exact.o) == 0);
  CHECK(deciding_error({1, -1}, {0, 0}) == 1);
}

TEST_CASE("a token's winner is not decided by less than the rounding of two logits") {
  const TokenLogits near = exact_reference({27.1, 27, 0}, 0);  // bf16 has 27 and 27.125
  CHECK(model_figures({near}, kNarrow, kAnyWidth).decidable == 0);
  CHECK(model_figures({near}, kWide, kAnyWidth).decidable == 1);
  const TokenLogits apart = exact_reference({27.2, 27, 0}, 0);
  CHECK(model_figures({apart}, kNarrow, kAnyWidth).decidable == 1);
}

TEST_CASE("divergences are held to c^2 times the reference's, or the floor") {
  const Logits o = {2, 1, 0, -1};
  TokenLogits token{o, o, o, 1};
  token.r[0] += 0.01;
  token.y[0] += 0.019;
  const ModelFigures near = model_figures({token, {o, o, o, 2}}, kWide, 1);
  CHECK(near.max_kl == Approx(2 * near.mean_kl));
  CHECK(near.spread == Approx(std::sqrt(1.25)));
  const Gate allowed = gate(model_gates(near, 2, 0), "KL mean");
  CHECK(allowed.limit == Approx(4 * near.reference_mean_kl));
  CHECK(allowed.passed);
  token.y[0] += 0.002;
  CHECK_FALSE(gate(model_gates(model_figures({token}, kWide, 1), 2, 0), "KL max").passed);
  token.r = o;  // an exact reference: the floor counts
  CHECK_FALSE(gate(model_gates(model_figures({token}, kWide, 1), 2, 1e-4), "KL max").passed);
  const Gate floor = gate(model_gates(model_figures({token}, kWide, 1), 2, 0.1), "KL max");
  CHECK(floor.limit == Approx(4 * 0.5 * 0.01 * 1.25));
  CHECK(floor.passed);
}

TEST_CASE("likelihood of what follows, and the five likeliest") {
  const Logits o = {6, 5, 4, 3, 2, 1, 0};
  const double p = 1 / (std::exp(1.0) + 1);
  const std::vector<TokenLogits> two = {{{0, 1}, {0, 0}, {0, 0}, 0}, {{0, 1}, {0, 0}, {0, 0}, 1}};
  const ModelFigures figures = model_figures(two, kWide, 1);
  const double worse = std::log(0.5) - std::log(p), better = std::log(0.5) - std::log(1 - p);
  CHECK(figures.nll_difference == Approx((worse + better) / 2));
  CHECK(figures.nll_standard_error == Approx(std::fabs(worse - better) / 2));
  CHECK(figures.nll_tokens == 2);
  const ModelFigures top = model_figures({{{6, 5, 4, 3, 0, 1, 2}, o, o, std::nullopt}}, kWide, 1);
  CHECK(top.top5_overlap == Approx(0.8));
  CHECK(top.nll_tokens == 0);
}

TEST_CASE("tokens whose reference overflowed are left out") {
  const TokenLogits good = exact_reference({3, 1, 0}, 0.01);
  TokenLogits lost = exact_reference({0, 1, 3}, 0.01);
  lost.r = {std::nan(""), 1, 3};
  const ModelFigures figures = model_figures({lost, good}, kWide, kAnyWidth);
  CHECK(figures.tokens == 1);
  CHECK(figures.spread == model_figures({good}, kWide, kAnyWidth).spread);
  for (const Gate& gate : model_gates(figures, 2, 0.1)) CHECK(gate.passed);
  CHECK(model_figures({lost}, kWide, kAnyWidth).tokens == 0);
}

}  // namespace
}  // namespace plumb::harness
