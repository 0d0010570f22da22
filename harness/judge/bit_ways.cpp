#include "harness/judge/bit_ways.h"

#include <algorithm>

#include "harness/judge/limits.h"
#include "harness/judge/spread_limit.h"
#include "kernels/core/error.h"

namespace plumb::harness {

bool cascades(const Operations& operations) {
  bool rounded = false;  // by an operation so far
  for (const Operation& operation : operations) {
    const bool narrow = is_floating(operation.stores) && size_of(operation.stores) == 2;
    if (narrow && operation.op.starts_with("_scaled_dot_product")) return true;
    if (rounded && operation.fed && operation.terms > 1) return true;
    rounded = rounded || narrow;
  }
  return false;
}

bool rounds_values_alone(const Operations& operations) {
  const auto sums = [](const Operation& it) { return it.terms > 1; };
  return std::count_if(operations.begin(), operations.end(), sums) == 1 &&
         sums(operations.back()) && !operations.back().op.starts_with("_scaled_dot_product");
}

std::vector<Stage> stages_of(const Operations& operations) {
  std::vector<Stage> out;
  for (const Operation& operation : operations) {
    if (operation.terms > 1) out.push_back({operation.terms, {}});
  }
  return out;
}

ConformanceRule rule_of(const BitWay& way, const Rule& rule, int64_t columns) {
  return conformance_rule(rule, floors(rule.contract, way.stages, 0), columns);
}

void fit(std::vector<BitWay>& ways, const Rule& rule, int64_t columns) {
  for (BitWay& way : ways) {
    const double shown = way.bits ? bits_limit(*way.bits) : 0;
    way.passed = static_cast<double>(way.found.differ) <= std::max(way.found.limit, shown);
    SmallParts& parts = way.parts;
    if (rule.leaf) {
      parts.distance_limit =
          std::max(kLimits.furthest_bit, kLimits.furthest_of_others * rule.others);
    }
    if (way.bits && way.found.n > 0) {
      const double share = shown / static_cast<double>(way.found.n);
      parts.crowd_limit =
          std::max(parts.crowd_limit, crowd_limit(way.found.n / columns, columns, share));
    }
    way.fits = way.passed && parts.fit();
  }
}

int followed_of(const std::vector<BitWay>& ways) {
  const auto first = [&](bool BitWay::*wanted) {
    const auto found = std::find_if(ways.begin(), ways.end(),
                                    [&](const BitWay& it) { return it.*wanted && it.accurate; });
    return found == ways.end() ? -1 : static_cast<int>(found - ways.begin());
  };
  const int fits = first(&BitWay::fits);
  return fits >= 0 ? fits : first(&BitWay::passed);
}

size_t nearest_of(const std::vector<BitWay>& ways, int followed) {
  if (followed >= 0) return static_cast<size_t>(followed);
  const auto fewest = std::min_element(
      ways.begin(), ways.end(), [](auto& a, auto& b) { return a.found.differ < b.found.differ; });
  return static_cast<size_t>(fewest - ways.begin());
}

std::string words_of(const std::vector<BitWay>& ways, size_t at, bool follows) {
  const BitWay& nearest = ways[at];
  std::string out =
      text(follows ? "" : "follows no rounding points of the recording; nearest: ", nearest.name,
           " (", share_that_differs(nearest.found), " differ)");
  if (nearest.passed && !nearest.accurate) out += ", which is less accurate than the reference";
  const BitWay& first = ways.front();
  if (first.name != nearest.name)
    out += text("; not: ", first.name, " (", share_that_differs(first.found), ')');
  return out;
}

std::vector<size_t> hold_to(const std::vector<BitWay>& ways, int followed, size_t nearest,
                            bool demanded, Rule& rule, Allowance& allowance) {
  const bool follows = followed >= 0;
  rule.conformance = follows || rule.leaf || demanded;
  rule.unlike = !rule.conformance && rule.rounds_values_alone;
  if (follows) rule.rounding = ways[nearest].name;
  if (follows || demanded) {
    allowance.bits = ways[nearest].bits;
    rule.stages = ways[nearest].stages;
  }
  std::vector<size_t> peers;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (follows ? i == nearest : !rule.leaf && ways[i].accurate) peers.push_back(i);
  }
  return peers;
}

}  // namespace plumb::harness
