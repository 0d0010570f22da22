#include "harness/judge/output_limits.h"

#include <algorithm>
#include <utility>

namespace plumb::harness {

OutputLimits::OutputLimits(KnownOutput known) : known_(std::move(known)) {
  known_.rule.composite = true;
}

bool OutputLimits::has_bits() const {
  return !known_.ways.empty() && conformance_applies(known_.scales.storage, known_.valid);
}

void OutputLimits::set(int64_t alike, std::vector<GainScales::Family> gains,
                       MeasuredOutput reference, std::vector<MeasuredOutput> models,
                       const std::vector<double>& moves) {
  if (known_.rule.leaf) known_.rule.cascade_outputs = alike;
  gains_.clear();
  gains_.emplace_back(known_.scales, std::move(gains));
  reference_ = std::move(reference);
  models_ = std::move(models);
  known_.rule.others = 0;
  for (size_t i = 1; i < models_.size(); ++i) {
    known_.ways[i].accurate =
        tensor_no_less_accurate(models_[i].figures.statistics.tensor,
                                reference_.figures.statistics.tensor, known_.scales.storage);
    if (!known_.ways[i].accurate) continue;
    known_.rule.others = std::max(known_.rule.others, moves[i]);
  }
}

KnownFigures OutputLimits::figures_beside(size_t way, const std::vector<size_t>& peers) const {
  KnownFigures out;
  out.reference = reference_.figures;
  if (!models_.empty()) out.model = models_[way].figures;
  for (const size_t peer : peers) out.peers.push_back(models_[peer].figures);
  return out;
}

double OutputLimits::element_limit() const {
  std::vector<size_t> all;
  for (size_t i = 0; i < models_.size(); ++i) all.push_back(i);
  double out = 0;
  for (size_t i = 0; i < std::max<size_t>(models_.size(), 1); ++i) {
    const KnownFigures figures = figures_beside(i, all);
    LimitBasis basis(known_.rule, known_.allowance, figures, known_.scales, gains_.front(),
                     floors(known_.rule.contract, {}, 0));
    for (const Gate& gate : basis.gates(reference_.figures)) {
      if (gate.name == "element") out = std::max(out, gate.limit);
    }
  }
  return out;
}

void OutputLimits::call_axes(std::vector<std::string> labels) {
  known_.scales.layout.labels = std::move(labels);
}

std::vector<Gate> OutputLimits::gates(const MeasuredOutput& y) const {
  return judged(y).verdict.gates;
}

JudgedOutput OutputLimits::judged(const MeasuredOutput& y) const {
  JudgedOutput out;
  OutputVerdict& v = out.verdict;
  v.statistics = y.figures.statistics;
  if (y.wrong > 0) {
    v.gates = {make_gate("classes", static_cast<double>(y.wrong), 0)};
    return out;
  }
  Rule rule = known_.rule;
  Allowance allowance = known_.allowance;
  std::vector<BitWay> ways;
  std::vector<size_t> peers;
  size_t at = 0;
  const int64_t columns = known_.scales.layout.columns;
  // The bits of y, or of the reference, held to the way `i`.
  const auto held = [&](const MeasuredOutput& of, size_t i) {
    const ConformanceRule of_bits = rule_of(known_.ways[i], rule, columns);
    MeasuredBits bits = of.bits[i];
    hold(bits.found, of_bits);
    if (bits.found.differ > 0 && bits.few) limit_parts(bits.parts, bits.found, of_bits);
    return bits;
  };
  if (has_bits()) {
    ways = known_.ways;
    for (size_t i = 0; i < ways.size(); ++i) {
      MeasuredBits bits = held(y, i);
      ways[i].found = std::move(bits.found);
      ways[i].parts = bits.parts;
    }
    fit(ways, rule, columns);
    const int followed = followed_of(ways);
    out.bits = words_of(ways, nearest_of(ways, followed), followed >= 0);
    if (followed >= 0) at = static_cast<size_t>(followed);
    peers = hold_to(ways, followed, at, false, rule, allowance);
  }
  const KnownFigures figures = figures_beside(at, peers);
  LimitBasis basis(rule, allowance, figures, known_.scales, gains_.front(),
                   floors(rule.contract, rule.stages, 0));
  v.gates = basis.gates(y.figures);
  v.reference = basis.reference();
  v.floors = basis.floors();
  v.rounding = rule.rounding;
  if (!has_bits() || !rule.conformance) return out;
  bits_gates(v, rule, allowance, known_.scales.layout, rule_of(ways[at], rule, columns),
             held(y, at), {held(reference_, at), {}});
  return out;
}

bool tensor_no_less_accurate(double error, double of_reference, DType storage) {
  const double floor = kLimits.rounding * unit_roundoff(storage);
  return error <= kLimits.no_less_accurate * std::max(of_reference, floor);
}

double margin(const std::vector<Gate>& gates) {
  double out = 0;
  for (const Gate& gate : gates) out = std::max(out, ratio(gate));
  return out;
}

}  // namespace plumb::harness
