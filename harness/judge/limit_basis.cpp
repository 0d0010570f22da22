#include "harness/judge/limit_basis.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/ill_conditioned.h"
#include "harness/judge/spread_limit.h"
#include "harness/judge/sums.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

Statistics lower(const Statistics& a, const Statistics& b) {
  Statistics out = a;
  const auto take = [](double& to, double other) { to = std::fmin(to, other); };
  take(out.tensor, b.tensor);
  take(out.element, b.element);
  if (std::fabs(b.gain) < std::fabs(out.gain)) out.gain = b.gain;
  for (size_t i = 0; i < out.families.size(); ++i) {
    take(out.families[i].value, b.families[i].value);
    take(out.families[i].normalised, b.families[i].normalised);
  }
  return out;
}

Statistics higher(const Statistics& a, const Statistics& b) {
  Statistics out = a;
  const auto take = [](double& to, double other) { to = std::fmax(to, other); };
  take(out.tensor, b.tensor);
  take(out.element, b.element);
  if (std::fabs(b.gain) > std::fabs(out.gain)) out.gain = b.gain;
  for (size_t i = 0; i < out.families.size(); ++i) {
    take(out.families[i].value, b.families[i].value);
    take(out.families[i].normalised, b.families[i].normalised);
  }
  return out;
}

// The statistics of an exact output: limits are floors then.
Statistics without_error(const Statistics& like) {
  Statistics out = like;
  out.tensor = out.element = out.gain = 0;
  for (GroupStatistic& family : out.families) family.value = family.normalised = 0;
  return out;
}

const Gate& furthest(const std::vector<Gate>& gates) {
  return *std::max_element(gates.begin(), gates.end(), [](const Gate& a, const Gate& b) {
    return quotient(a.statistic, a.limit) < quotient(b.statistic, b.limit);
  });
}

// Whether no statistic is further off than that.
bool all_within(const std::vector<Gate>& gates, double factor) {
  return std::all_of(gates.begin(), gates.end(),
                     [&](const Gate& gate) { return gate.statistic <= factor * gate.limit; });
}

// Whole numbers that differ, but not as doubles: y's becomes the next double.
void tell_apart(std::vector<double>& y, const Tensor& given, const Tensor& like,
                const Layout& layout) {
  if (given.dtype() != DType::i64 || like.dtype() != DType::i64) return;
  constexpr double kExact = 0x1p53, kInfinity = std::numeric_limits<double>::infinity();
  if (std::all_of(y.begin(), y.end(), [&](double x) { return std::fabs(x) < kExact; })) return;
  const std::vector<int64_t> flat = flat_positions(layout);
  const auto *a = given.data<int64_t>(), *b = like.data<int64_t>();
  for (size_t i = 0; i < flat.size(); ++i) {
    const int64_t mine = a[flat[i]], wanted = b[flat[i]];
    if (mine == wanted || static_cast<double>(mine) != static_cast<double>(wanted)) continue;
    y[i] = std::nextafter(y[i], mine > wanted ? kInfinity : -kInfinity);
  }
}

}  // namespace

CaseArrays load_arrays(const Evidence& c) {
  CaseArrays a;
  a.layout = layout_of(c.y.shape(), c.axes, c.sample ? c.sample->tokens : std::vector<int64_t>());
  a.layout.labels = c.labels;
  a.y = to_matrix(c.y, a.layout);
  if (c.reference.defined()) {
    a.r = to_matrix(c.reference, a.layout);
    tell_apart(a.y, c.y, c.reference, a.layout);
  }
  const bool f64 = c.y.dtype() == DType::f64;
  if (c.delta.defined() && f64) a.delta = to_matrix(c.delta, a.layout);
  if (c.model.defined()) a.model = to_matrix(c.model, a.layout);
  a.valid = to_mask(c.valid, c.valid_axes, a.layout);
  if (c.ill_conditioned.defined() && !f64) {
    const std::vector<uint8_t> ill = to_mask(c.ill_conditioned, c.axes, a.layout);
    for (size_t i = 0; i < ill.size(); ++i) a.valid[i] = a.valid[i] && !ill[i];
  }
  if (c.oracle.defined()) {
    a.o = to_matrix(c.oracle, a.layout);
    if (!c.reference.defined()) tell_apart(a.y, c.y, c.oracle, a.layout);
    return a;
  }
  if (!c.reference.defined()) return a;
  a.o = to_matrix(c.reference, a.layout);
  if (c.delta.defined()) add_delta(a.o, c.delta, a.layout);
  return a;
}

Figures figures_of(const std::vector<double>& values, const ReferenceScales& scales) {
  const std::vector<uint8_t> skipped = not_finite(values);
  return {statistics(values, scales, skipped), column_errors(values, scales, skipped)};
}

KnownFigures known_figures(const Evidence& c, const CaseArrays& a, const ReferenceScales& scales) {
  KnownFigures out;
  if (!a.r.empty() || a.model.empty()) out.reference = figures_of(a.r, scales);
  if (!a.model.empty()) out.model = figures_of(a.model, scales);
  for (const Tensor& peer : c.peers) {
    out.peers.push_back(figures_of(to_matrix(peer, a.layout), scales));
  }
  return out;
}

const Spread* recorded_spread(const Allowance& allowance, const Rule& rule, DType dtype_of_y) {
  const bool narrow = size_of(dtype_of_y) == 2;
  const bool applies = allowance.narrowed.empty() && !(narrow && rule.held_to_model);
  return allowance.spread && applies ? &*allowance.spread : nullptr;
}

bool all_passed(const std::vector<Gate>& gates) {
  return std::all_of(gates.begin(), gates.end(), [](const Gate& gate) { return gate.passed; });
}

bool tensor_no_less_accurate(const Evidence& evidence, const Rule& rule, const Tensor& model,
                             const Tensor& eager) {
  const CaseArrays a = load_arrays(evidence);
  const ReferenceScales scales = reference_scales(a.layout, a.o, a.valid, rule.contract.storage);
  const auto of = [&](const std::vector<double>& values) {
    return statistics(values, scales, not_finite(values));
  };
  const Statistics reference = of(a.r.empty() ? to_matrix(eager, a.layout) : a.r);
  const Floors floor = floors(rule.contract, rule.stages, rule.max_abs_score);
  return of(to_matrix(model, a.layout)).tensor <=
         kLimits.no_less_accurate * std::max(reference.tensor, floor.norm);
}

LimitBasis::LimitBasis(const Rule& rule, const Allowance& allowance, const KnownFigures& known,
                       const ReferenceScales& scales, const GainScales& gains, const Floors& floors)
    : rule_(rule),
      allowance_(allowance),
      known_(known),
      scales_(scales),
      gains_(gains),
      floors_(floors),
      spread_(recorded_spread(allowance, rule, scales.storage)) {
  lower_floors();
  choose_reference();
  admit_peers();
}

std::string LimitBasis::ill_conditioned() const {
  const SpreadOf* of = spread_ ? spread_->find("tensor") : nullptr;
  if (!of || of->mean <= kLimits.ill_conditioned) return {};
  return text("ill conditioned: correct kernels differ from the oracle by ", of->mean,
              " of its size");
}

bool LimitBasis::may_have_ill_rows() const {
  const auto may_be = [&](const std::optional<Figures>& of) {
    return of && may_be_ill(of->statistics, scales_);
  };
  return may_be(known_.reference) || may_be(known_.model);
}

std::vector<Gate> LimitBasis::gates(const Figures& y) {
  const auto judged = [&] {
    return statistic_gates(y.statistics, reference_, scales_, floors_, spread_);
  };
  std::vector<Gate> out = judged();
  if (!all_passed(out) && all_within(out, kLimits.spread_worth) && simulate()) out = judged();
  if (!all_passed(out) && all_within(out, kLimits.redraw_worth) && redraw()) out = judged();
  if (rule_.unlike) hold_to_all_ways(out);
  for (Gate& gate : gain_gates(y.columns)) out.push_back(std::move(gate));
  return out;
}

// A sum of rounded values has few right ways, whose errors are known: what follows none of them,
// such as a kernel whose partial sums are in 16 bits, is to be as accurate as they are.
void LimitBasis::hold_to_all_ways(std::vector<Gate>& gates) const {
  constexpr double kMost = 1.25, kDeviations = 3;
  const double n = static_cast<double>(std::max<int64_t>(scales_.n, 1));
  const double most = kMost + kDeviations / std::sqrt(2 * n);
  for (Gate& gate : gates) {
    if (gate.name != "tensor") continue;
    const double limit = most * std::max(reference_.tensor, floors_.norm);
    if (limit >= gate.limit) continue;
    const std::vector<Term> derivation = {
        {"c", most}, {"reference", reference_.tensor}, {"floor", floors_.norm}};
    gate = make_gate("tensor", gate.statistic, limit, derivation, gate.where);
  }
}

// What simulated kernels are off by counts, too: the reference is one of many.
std::vector<Gate> LimitBasis::gain_gates(const ColumnErrors& y) const {
  const SpreadOf* of = spread_ ? spread_->find("tensor") : nullptr;
  const double simulated = of ? std::hypot(of->mean, of->deviation) : 0;
  const double error = floors_.roundings * std::max(reference_.tensor, floors_.norm);
  return gains_.gates(y, reference_columns_, std::max(error, simulated));
}

// A composite's closed forms add up what its sums may be off by, wherever the sums go: a
// residual stream is far larger than what a layer adds to it. Simulated kernels know.
void LimitBasis::lower_floors() {
  const bool plain = rule_.contract.accumulator.rounding == SumRounding::nearest &&
                     rule_.contract.multiply == rule_.contract.storage;
  if (!rule_.composite || !spread_ || !plain) return;
  const double u = unit_roundoff(rule_.contract.storage);
  floors_.norm = kLimits.rounding * u;
  floors_.element = u;
}

void LimitBasis::choose_reference() {
  if (!known_.reference) {
    reference_ = known_.model->statistics;
    reference_columns_ = known_.model->columns;
    return;
  }
  const Figures& r = *known_.reference;
  const bool same_contract = known_.model && !rule_.held_to_model;
  const Statistics trusted = same_contract ? known_.model->statistics : without_error(r.statistics);
  reference_ = r.statistics;
  reference_columns_ = r.columns;
  if (suspects(trusted)) {
    const std::vector<double> none(r.columns.energy.size(), 0);
    reference_ = trusted;
    reference_columns_ = same_contract ? known_.model->columns : ColumnErrors{none, none};
  } else if (rule_.held_to_model && known_.model && admissible()) {
    const Figures& m = *known_.model;
    reference_ = rule_.coarser ? m.statistics : lower(r.statistics, m.statistics);
    reference_columns_ = rule_.coarser ? m.columns : smaller(reference_columns_, m.columns);
  } else if (same_contract) {
    reference_columns_ = larger(reference_columns_, known_.model->columns);
  }
}

// Roundings at other points are other draws, where few of them decide.
void LimitBasis::admit_peers() {
  for (const Figures& peer : known_.peers) {
    reference_ = higher(reference_, peer.statistics);
    reference_columns_ = larger(reference_columns_, peer.columns);
  }
}

// Whether the reference's errors are beyond what its model, the floors and simulated kernels
// allow; says so.
bool LimitBasis::suspects(const Statistics& trusted) {
  const bool other_roundings = size_of(scales_.storage) == 2 && rule_.held_to_model;
  if (other_roundings && !allowance_.spread)
    return false;  // nothing here rounds as the reference does
  const Spread* spread = other_roundings ? &*allowance_.spread : spread_;
  const auto judged = [&] {
    return statistic_gates(known_.reference->statistics, trusted, scales_, floors_, spread);
  };
  std::vector<Gate> gates = judged();
  if (gates.empty()) return false;
  if (!all_passed(gates) && !other_roundings && simulate()) {
    spread = spread_;
    gates = judged();
  }
  const Gate& gate = furthest(gates);
  // A floor knows nothing of cancellation, and simulations not of every row that may flip.
  if (!(gate.statistic > kLimits.far_beyond_floor * gate.limit)) return false;
  suspicion_ = text("golden suspect: the reference's ", gate.name, " is ", gate.statistic,
                    " off, a correct run's at most ", gate.limit);
  if (!allowance_.narrowed.empty()) suspicion_ += "; " + allowance_.narrowed;
  return true;
}

// The model may lower a limit, but it does not replace a reference that it is far from. Where the
// run rounds more often than the reference did, the model is admitted as it is: our own block
// computed it, and that block is held to o.
bool LimitBasis::admissible() const {
  return rule_.coarser ||
         no_less_accurate(known_.model->statistics, known_.reference->statistics, floors_);
}

Spread LimitBasis::spread_over(const std::vector<Tensor>& runs) const {
  std::vector<Statistics> out;
  for (const Tensor& y : runs) {
    const std::vector<double> values = to_matrix(y, scales_.layout);
    out.push_back(statistics(values, scales_, not_finite(values)));
  }
  return spread_of(out);
}

// Two kernels that round at different points draw their roundings independently; where few of them
// decide (one token, scores that softmax makes exponents of), one draw may be many times another.
bool LimitBasis::redraw() {
  if (!allowance_.redraw) return false;
  const std::vector<Tensor> kernels = allowance_.redraw(static_cast<int>(kLimits.spread_runs));
  if (kernels.empty()) return false;
  own_ = spread_over(kernels);
  spread_ = &own_;
  return true;
}

bool LimitBasis::simulate() {
  if (spread_ || !allowance_.simulate) return false;
  own_ = spread_over(allowance_.simulate(static_cast<int>(kLimits.spread_runs)));
  // Host code that no device computes has no noise to simulate.
  const bool noisy = std::any_of(own_.gates.begin(), own_.gates.end(), [](const SpreadOf& of) {
    return of.largest > of.mean * (1 + 1e-9);
  });
  if (noisy) spread_ = &own_;
  return noisy;
}

}  // namespace plumb::harness
