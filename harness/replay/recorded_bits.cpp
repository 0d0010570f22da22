#include "harness/replay/recorded_bits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "harness/judge/bit_ways.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/spread_limit.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Values of a row that one factor of it brings over a tie together (alike_in_row), in any input
// that is as wide as the output.
int64_t alike_inputs(const Recording& recording, const Checkpoint& checkpoint, const Tensor& y) {
  int64_t most = 0;
  for (const auto& [name, ref] : checkpoint.inputs) {
    const Tensor x = recording.read(ref.tensor);
    if (x.rank() == 0 || y.rank() == 0 || x.dim(-1) != y.dim(-1)) continue;
    most = std::max(most, alike_in_row(x));
  }
  return most;
}

// The ways to round that a recording has of an output, and the rounded model of each.
struct Family {
  std::vector<BitWay> ways;
  std::vector<Tensor> models;
};

void add(Family& family, const OutputCase& output, const CaseArrays& arrays, BitWay way,
         Tensor model) {
  const ConformanceRule rule = rule_of(way, output.rule, arrays.layout.columns);
  way.found =
      conformance(arrays.y, to_matrix(model, arrays.layout), arrays.valid, rule, &way.parts);
  way.accurate =
      family.ways.empty() || tensor_no_less_accurate(output.evidence, output.rule, model, {});
  family.ways.push_back(std::move(way));
  family.models.push_back(std::move(model));
}

void add_rounded_once(Family& family, const Checkpoint& checkpoint, const OutputCase& output,
                      const CaseArrays& arrays) {
  BitWay way{kRoundsOnce, std::nullopt,
             stages_of(*checkpoint.outputs.at(output.evidence.name).operations)};
  add(family, output, arrays, std::move(way), rounded_once(output.evidence, arrays));
}

// Where the recorded run rounds, then the others of its family.
Family family_of(const Recording& recording, const Checkpoint& checkpoint, const OutputCase& output,
                 const CaseArrays& arrays) {
  const OutputRef& ref = checkpoint.outputs.at(output.evidence.name);
  Family out;
  const SpreadOf* bits = output.allowance.spread ? output.allowance.spread->find("bits") : nullptr;
  add(out, output, arrays, {kRoundsAsRecorded, bits ? std::optional(*bits) : std::nullopt, {}},
      output.evidence.model);
  for (const MemberRef& member : ref.members) {
    add(out, output, arrays, {member.name, member.bits, {}}, recording.read(member.values));
  }
  const bool has_once = std::any_of(out.ways.begin(), out.ways.end(),
                                    [](const BitWay& it) { return it.name == kRoundsOnce; });
  if (!has_once) add_rounded_once(out, checkpoint, output, arrays);
  return out;
}

// How far the others' roundings move an element of the first.
double furthest_of_others(const Family& family, const OutputCase& output,
                          const CaseArrays& arrays) {
  const DType storage = output.rule.contract.storage;
  const double normal = std::ldexp(1.0, info(storage).min_exponent);
  const std::vector<double> first = to_matrix(family.models.front(), arrays.layout);
  const double negligible = noise(first, arrays.valid);
  double out = 0;
  for (size_t i = 1; i < family.ways.size(); ++i) {
    if (!family.ways[i].accurate) continue;
    out = std::max(out, furthest(to_matrix(family.models[i], arrays.layout), first, arrays.valid,
                                 unit_roundoff(storage), normal, negligible));
  }
  return out;
}

bool is_demanded(const BitWay& way, bool first, std::optional<RoundingPoints> demanded) {
  if (!demanded) return true;
  return *demanded == RoundingPoints::eager ? first : way.name == kRoundsOnce;
}

// Leaves those that are demanded; Unsupported where the recording holds none.
void leave_demanded(Family& family, std::optional<RoundingPoints> demanded) {
  Family out;
  for (size_t i = 0; i < family.ways.size(); ++i) {
    const bool possible = demanded != RoundingPoints::flash;
    if (!possible || !is_demanded(family.ways[i], i == 0, demanded)) continue;
    out.ways.push_back(std::move(family.ways[i]));
    out.models.push_back(std::move(family.models[i]));
  }
  if (out.ways.empty()) {
    throw Unsupported("the recording does not hold the rounding points that --contract demands");
  }
  family = std::move(out);
}

}  // namespace

Tensor rounded_once(const Evidence& output, const CaseArrays& arrays) {
  Tensor out = host_tensor(output.y.dtype(), output.y.shape());
  const std::vector<int64_t> flat = flat_positions(arrays.layout);
  const int64_t size = size_of(output.y.dtype());
  for (size_t i = 0; i < flat.size(); ++i) {
    store(output.y.dtype(), out.data<char>() + flat[i] * size, arrays.o[i]);
  }
  return out;
}

std::string follow_recorded_bits(const Recording& recording, const Checkpoint& checkpoint,
                                 std::optional<RoundingPoints> demanded, OutputCase& output) {
  if (!output.evidence.model.defined() || !output.evidence.has_expected_shape()) return {};
  const Operations& operations = *checkpoint.outputs.at(output.evidence.name).operations;
  const bool leaf = !cascades(operations);
  output.rule.rounds_values_alone = rounds_values_alone(operations);
  if (leaf) output.rule.cascade_outputs = alike_inputs(recording, checkpoint, output.evidence.y);
  const CaseArrays arrays = load_arrays(output.evidence);
  const int64_t n = std::count(arrays.valid.begin(), arrays.valid.end(), 1);
  if (!conformance_applies(output.evidence.y.dtype(), n)) return {};
  output.rule.leaf = leaf;
  Family family = family_of(recording, checkpoint, output, arrays);
  if (leaf) output.rule.others = furthest_of_others(family, output, arrays);
  fit(family.ways, output.rule, arrays.layout.columns);
  leave_demanded(family, demanded);
  const std::vector<BitWay>& ways = family.ways;
  const int followed = followed_of(ways);
  const size_t at = nearest_of(ways, followed);
  if (followed >= 0 || demanded) output.evidence.model = family.models[at];
  for (const size_t peer :
       hold_to(ways, followed, at, demanded.has_value(), output.rule, output.allowance)) {
    output.evidence.peers.push_back(family.models[peer]);
  }
  return words_of(ways, at, followed >= 0);
}

}  // namespace plumb::harness
