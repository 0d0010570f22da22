#include "harness/judge/limits.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/spread_limit.h"
#include "harness/judge/sums.h"

namespace plumb::harness {
namespace {

double unit_of(const Accumulator& accumulator) { return std::ldexp(1.0, -accumulator.bits); }

bool is_narrow(DType storage) { return size_of(storage) <= 2; }

}  // namespace

Gate gain_gate(std::string name, double gain, double reference, double reference_tensor,
               double floor, int64_t elements, int64_t rows, DType storage) {
  const double root = std::sqrt(static_cast<double>(rows));
  // Of few elements any error is coherent: then the tensor's own limit has to do.
  const double k = elements < kLimits.gain_least ? c_of(storage) * kappa(elements, 1)
                   : is_narrow(storage)
                       ? std::max(kLimits.gain_smallest, quotient(kLimits.gain_rows, root))
                       : kLimits.gain_f32;
  const double of_gain = kLimits.gain_of_reference * std::fabs(reference);
  const double of_error = k * std::max(reference_tensor, floor);
  const double of_constants =
      is_narrow(storage) ? 0 : kLimits.gain_roundings * unit_roundoff(storage);
  return make_gate(std::move(name), std::fabs(gain), std::max({of_gain, of_error, of_constants}),
                   {{"factor", kLimits.gain_of_reference},
                    {"reference", std::fabs(reference)},
                    {"k", k},
                    {"reference_tensor_error", reference_tensor},
                    {"floor", floor}});
}

double accumulation_floor(const std::vector<Stage>& stages) {
  double sum = 0;
  for (const Stage& stage : stages) {
    const auto n = static_cast<double>(stage.terms);
    const bool truncates = stage.accumulator.rounding == SumRounding::toward_zero;
    const double growth = truncates ? kLimits.truncation_growth * n / stage.accumulator.block
                                    : kLimits.nearest_growth * std::sqrt(n);
    sum += growth * unit_of(stage.accumulator);
  }
  return sum;
}

Floors floors(const Contract& contract, const std::vector<Stage>& stages, double max_abs_score) {
  const double u_store = unit_roundoff(contract.storage);
  Floors out;
  out.accumulation = accumulation_floor(stages) + unit_of(contract.accumulator) * max_abs_score;
  out.norm = kLimits.rounding * u_store + out.accumulation;
  out.element = u_store + kLimits.element_accumulation * out.accumulation;
  if (contract.points == RoundingPoints::flash) out.roundings = std::sqrt(2.0);
  return out;
}

double c_of(DType storage) { return is_narrow(storage) ? kLimits.c_narrow : kLimits.c_f32; }

double kappa(int64_t group_size, int64_t groups) {
  const auto n = static_cast<double>(std::max<int64_t>(group_size, 1));
  const auto g = static_cast<double>(std::max<int64_t>(groups, 1));
  return 1 + kLimits.kappa_widening / std::sqrt(n * (1 + 2 * std::log(g)));
}

Gate make_gate(std::string name, double statistic, double limit, std::vector<Term> derivation,
               std::string where) {
  Gate out{std::move(name), statistic, limit, std::move(derivation), false, std::move(where)};
  out.passed = !!(statistic <= limit);  // a NaN on either side fails
  return out;
}

double ratio(const Gate& gate) {
  const double value = gate.statistic / gate.limit;
  if (gate.passed) return std::isfinite(value) ? value : 0;  // 0 / 0
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

Gate ratio_gate(std::string name, double y, double c, double kappa, double r, double reference,
                double floor, std::string where) {
  std::vector<Term> terms = {
      {"c", c}, {"kappa", kappa}, {"reference", reference}, {"floor", floor}};
  if (r != 1) terms.push_back({"roundings", r});
  return make_gate(std::move(name), y, c * kappa * r * std::max(reference, floor), std::move(terms),
                   std::move(where));
}

bool no_less_accurate(const Statistics& errors, const Statistics& others, const Floors& floors) {
  const auto fits = [](double error, double other, double floor) {
    return error <= kLimits.no_less_accurate * std::max(other, floor);
  };
  bool out = fits(errors.tensor, others.tensor, floors.norm) &&
             fits(errors.element, others.element, floors.element);
  for (size_t i = 0; i < errors.families.size(); ++i) {
    out = out && fits(errors.families[i].value, others.families[i].value, floors.norm);
  }
  return out;
}

void widen(Gate& gate, const Spread* spread, DType storage) {
  const SpreadOf* of = spread ? spread->find(gate.name) : nullptr;
  if (!of) return;
  const double limit = spread_limit(*of, storage);
  gate.derivation.push_back({"spread", limit});
  gate.limit = std::max(gate.limit, limit);
  gate.passed = !!(gate.statistic <= gate.limit);
}

std::vector<Gate> statistic_gates(const Statistics& y, const Statistics& reference,
                                  const ReferenceScales& scales, const Floors& floors,
                                  const Spread* spread) {
  const double c = c_of(scales.storage);
  std::vector<Gate> out;
  out.push_back(ratio_gate("tensor", y.tensor, c, kappa(scales.n, 1), floors.roundings,
                           reference.tensor, floors.norm, {}));
  for (size_t a = 0; a < scales.families.size(); ++a) {
    const FamilyScales& family = scales.families[a];
    if (family.counted == 0) continue;
    const GroupStatistic& worst = y.families[a];
    const std::string where = worst.value == 0 || worst.worst < 0
                                  ? ""
                                  : group_name(scales.layout, family.partition, worst.worst);
    const std::string name(family.partition.name);
    if (family.uniform) {
      out.push_back(ratio_gate(name, worst.value, c, worst.worst_kappa, floors.roundings,
                               reference.families[a].value, floors.norm, where));
    } else {
      // v_g / kappa_g <= c max(max_g v_g(reference) / kappa_g, F), both sides times the worst
      // kappa_g.
      out.push_back(ratio_gate(name, worst.worst_value, c, worst.worst_kappa, floors.roundings,
                               reference.families[a].normalised, floors.norm, where));
    }
  }
  out.push_back(ratio_gate("element", y.element, c, kappa(1, scales.n), floors.roundings,
                           reference.element, floors.element,
                           y.element_at < 0 ? "" : element_name(scales.layout, y.element_at)));
  if (!scales.constant) {
    out.push_back(gain_gate("gain", y.gain, reference.gain, reference.tensor, floors.norm, scales.n,
                            scales.valid_rows, scales.storage));
  }
  for (Gate& gate : out) widen(gate, spread, scales.storage);
  return out;
}

}  // namespace plumb::harness
