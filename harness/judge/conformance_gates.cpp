#include "harness/judge/conformance_gates.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "harness/judge/conformance.h"
#include "harness/judge/small_parts.h"
#include "harness/judge/spread_limit.h"
#include "harness/recording/layout.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string place(const Layout& layout, int64_t position) {
  return position < 0 ? "" : element_name(layout, position);
}

// What simulated correct kernels show of the bits: recorded, or of our own block where they are
// `worth` their time.
std::optional<SpreadOf> bits_spread(const Rule& rule, const Allowance& allowance,
                                    const OtherBits& others, bool worth) {
  if (allowance.bits) return allowance.bits;
  const Spread* spread = recorded_spread(allowance, rule, rule.contract.storage);
  const SpreadOf* recorded = spread && !rule.held_to_model ? spread->find("bits") : nullptr;
  if (recorded) return *recorded;
  if (!worth || !others.simulated || !rule.rounding.empty()) return {};
  std::vector<int64_t> counts;
  for (const MeasuredBits& y : others.simulated()) {
    counts.push_back(y.found.differ - y.found.set_aside);
  }
  return spread_of_counts("bits", counts);
}

Gate bits_of_model_gate(const Conformance& found, const ConformanceRule& rule,
                        const RowsAside& aside, std::string where) {
  return make_gate("conformance", static_cast<double>(found.differ - found.set_aside), found.limit,
                   {{"n", static_cast<double>(found.n)},
                    {"q", found.q},
                    {"F_acc", rule.accumulation},
                    {"u_store", rule.u_store},
                    {"F_1", rule.cascade},
                    {"w", static_cast<double>(rule.fed)},
                    {"rows_aside", static_cast<double>(aside.rows)},
                    {"set_aside", static_cast<double>(found.set_aside)}},
                   std::move(where));
}

struct BitSpreads {
  SpreadOf distance, crowd;
};

// What simulated kernels show of how far bits are off, and in how many of a channel.
std::optional<BitSpreads> part_spreads(const Rule& rule, const Allowance& allowance,
                                       const OtherBits& others) {
  const Spread* spread = recorded_spread(allowance, rule, rule.contract.storage);
  const SpreadOf* distance = spread ? spread->find("ulp") : nullptr;
  const SpreadOf* crowd = spread ? spread->find("channel bits") : nullptr;
  if (distance && crowd) return BitSpreads{*distance, *crowd};
  if (!others.simulated) return {};
  // Those that round elsewhere differ in so many bits that neither is measured.
  std::vector<double> distances, crowds;
  for (const MeasuredBits& y : others.simulated()) {
    distances.push_back(y.parts.distance);
    crowds.push_back(static_cast<double>(y.parts.crowd));
  }
  return BitSpreads{spread_of_values("ulp", distances), spread_of_values("channel bits", crowds)};
}

// How far an element may be off whose bits are another's, and how many of a channel may.
void part_gates(OutputVerdict& v, const Rule& rule, const Allowance& allowance,
                const Layout& layout, const SmallParts& parts, const OtherBits& others) {
  const auto where = [&](int64_t at) { return place(layout, at); };
  Gate distance =
      make_gate("ulp", parts.distance, parts.distance_limit, {}, where(parts.distance_at));
  double most = parts.crowd_limit;
  const std::optional<SpreadOf> bits = bits_spread(rule, allowance, others, false);
  if (const auto n = static_cast<double>(v.conformance->n); bits && n > 0) {
    const int64_t rows = v.conformance->n / layout.columns;
    most = std::max(most, crowd_limit(rows, layout.columns, bits_limit(*bits) / n));
  }
  Gate crowd = make_gate("channel bits", static_cast<double>(parts.crowd), most,
                         {{"q", v.conformance->q}}, where(parts.crowd_at));
  if (!distance.passed || !crowd.passed) {
    const auto lift = [](Gate& gate, const SpreadOf& of) {
      const double limit = part_limit(of);
      gate.derivation.push_back({"spread", limit});
      gate.limit = std::max(gate.limit, limit);
      gate.passed = !!(gate.statistic <= gate.limit);
    };
    if (const std::optional<BitSpreads> spreads = part_spreads(rule, allowance, others)) {
      lift(distance, spreads->distance);
      lift(crowd, spreads->crowd);
    }
  }
  if ((!distance.passed || !crowd.passed) && others.reference) {
    // Where the reference itself does not follow its model, no device has to.
    const SmallParts& own = others.reference->parts;
    if (own.distance > distance.limit || static_cast<double>(own.crowd) > crowd.limit) return;
  }
  for (Gate* gate : {&distance, &crowd}) {
    if (std::isfinite(gate->limit)) v.gates.push_back(std::move(*gate));
  }
}

}  // namespace

void conformance_gates(OutputVerdict& v, const OutputCase& c, const CaseArrays& a) {
  const Rule& rule = c.rule;
  const DType storage = rule.contract.storage;
  const int64_t n = std::count(a.valid.begin(), a.valid.end(), 1);
  if (!rule.conformance || a.model.empty() || !conformance_applies(storage, n)) return;
  const ConformanceRule of_bits = conformance_rule(rule, v.floors, a.layout.columns);
  if (!conformance_applies(storage, n, rows_aside(of_bits, n / a.layout.columns))) return;
  const auto measured = [&](const std::vector<double>& y) {
    MeasuredBits out;
    out.found = conformance(y, a.model, a.valid, of_bits, &out.parts);
    return out;
  };
  MeasuredBits y = measured(a.y);
  OtherBits others;
  const bool follows = y.found.passed && y.parts.fit();
  if (!follows && !a.r.empty() && !rule.held_to_model && !rule.is_model) {
    others.reference = measured(a.r);
  }
  if (c.allowance.simulate) {
    others.simulated = [&] {
      std::vector<MeasuredBits> out;
      for (const Tensor& t : c.allowance.simulate(static_cast<int>(kLimits.spread_runs))) {
        out.push_back(measured(to_matrix(t, a.layout)));
      }
      return out;
    };
  }
  bits_gates(v, rule, c.allowance, a.layout, of_bits, std::move(y), others);
}

void bits_gates(OutputVerdict& v, const Rule& rule, const Allowance& allowance,
                const Layout& layout, const ConformanceRule& of_bits, MeasuredBits y,
                const OtherBits& others) {
  v.conformance = std::move(y.found);
  Conformance& found = *v.conformance;
  const RowsAside aside = rows_aside(of_bits, found.n / of_bits.columns);
  Gate gate = bits_of_model_gate(found, of_bits, aside, place(layout, found.first));
  const bool near = gate.statistic <= kLimits.spread_worth * gate.limit;
  if (!gate.passed) {
    if (const std::optional<SpreadOf> spread = bits_spread(rule, allowance, others, near)) {
      const double limit = bits_limit(*spread);
      gate.derivation.push_back({"spread", limit});
      gate.limit = found.limit = std::max(gate.limit, limit);
      gate.passed = found.passed = !!(gate.statistic <= gate.limit);
    }
  }
  // Where the reference itself does not follow its model, no device has to.
  if (!gate.passed && others.reference) {
    const Conformance& own = others.reference->found;
    if (static_cast<double>(own.differ - own.set_aside) > gate.limit) {
      v.golden_suspect =
          text("golden suspect: ", own.differ, " of ", own.n,
               " bits of the reference are not its rounded model's, expected at most ",
               std::floor(gate.limit), "; bits are not demanded");
      return;
    }
  }
  const bool counted = gate.passed;
  v.gates.push_back(std::move(gate));
  if (counted) part_gates(v, rule, allowance, layout, y.parts, others);
}

}  // namespace plumb::harness
