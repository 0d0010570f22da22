#include "harness/referee/known_bug.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "harness/recording/layout.h"
#include "harness/referee/margins.h"
#include "harness/referee/mutants.h"
#include "harness/referee/oracle_runs.h"
#include "harness/referee/rounding_family.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// A bug can only be distinguished from bad arithmetic where it takes the failure away.
constexpr double kTakesAway = 0.5;

// Every bug is computed in every rounding: larger blocks would take minutes.
constexpr int64_t kLargestSearched = 1 << 20;

int64_t size_of_operands(const HostOperands& operands) {
  int64_t out = 0;
  for (const auto& [name, t] : operands.inputs) out += t.numel();
  for (const auto& [name, t] : operands.weights) out += t.numel();
  return out;
}

bool has_no_numbers(const Evidence& it) {
  const std::vector<double> y = to_matrix(it.y, layout_of(it.y.shape(), it.axes));
  return std::none_of(y.begin(), y.end(), [](double x) { return std::isfinite(x); });
}

using Models = std::map<std::string, Tensor>;  // of every output, by name

// What a block with a bug computes: in float64, and rounded in every way in which a correct
// implementation may round.
struct Rounded {
  std::string name;  // "rounds once, at the output"; "": as the contract says
  Models models;
};
struct Wrong {
  Models float64;  // undefined for outputs that have no floats
  std::vector<Rounded> rounded;
};

Wrong run(const Mutant& mutant, const Recording& recording, const blocks::BlockEntry& block,
          const RunFacts& facts, const std::vector<OutputCase>& cases, Device& oracle) {
  OracleRuns runs(recording, mutant.checkpoint, block, mutant.operands, oracle);
  Wrong out;
  Rounded own;
  for (const OutputCase& it : cases) {
    const std::string& name = it.evidence.name;
    out.float64[name] = runs.float64(name);
    own.models[name] = runs.rounded(name, facts.single_rounding);
    if (size_of(facts.dtype) != 2 || it.rule.exact) continue;
    size_t at = 0;
    for (const RoundingWay& way : usual_ways(name, runs, block.name == "sdpa")) {
      if (at == out.rounded.size()) out.rounded.push_back({way.name, {}});
      out.rounded[at++].models[name] = runs.rounded_as(name, way);
    }
  }
  for (Rounded& rounded : out.rounded) rounded.models.insert(own.models.begin(), own.models.end());
  out.rounded.push_back(std::move(own));
  return out;
}

// The case with the block that has the bug in the place of the right one.
OutputCase against(OutputCase it, const Tensor& oracle, const Tensor& model) {
  Evidence& e = it.evidence;
  e.sample.reset();  // sketches are of the right rows
  e.delta = {};
  e.oracle = oracle;
  e.model = model;
  e.reference = oracle.defined() ? Tensor() : model;
  it.rule.held_to_model = true;
  e.float64_share = {};
  it.allowance.spread = {};
  it.allowance.simulate = it.allowance.redraw = {};
  return it;
}

// Of the valid elements of a 16-bit output: how many are not the model's, and how many there are.
std::pair<int64_t, int64_t> differing_bits(const Evidence& it) {
  if (size_of(it.y.dtype()) != 2) return {0, 0};
  const Layout layout = layout_of(it.y.shape(), it.axes);
  const std::vector<double> y = to_matrix(it.y, layout), model = to_matrix(it.model, layout);
  const std::vector<uint8_t> valid = to_mask(it.valid, it.valid_axes, layout);
  int64_t differ = 0, n = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    n += valid[i];
    differ += valid[i] && y[i] != model[i] && !(std::isnan(y[i]) && std::isnan(model[i]));
  }
  return {differ, n};
}

KnownBugFound likeness(const Mutant& mutant, const std::vector<OutputCase>& cases,
                       const Wrong& wrong, const Rounded& rounded) {
  KnownBugFound out{std::string(mutant.bug), std::numeric_limits<double>::quiet_NaN(), 0,
                    rounded.name};
  int64_t differ = 0, n = 0;
  for (const OutputCase& right : cases) {
    Tensor model = rounded.models.at(right.evidence.name);
    if (mutant.store) mutant.store(model);
    const OutputCase it = against(right, wrong.float64.at(right.evidence.name), model);
    out.ratio = std::max(out.ratio, largest_ratio(judge(it)));
    const auto [more, of] = differing_bits(it.evidence);
    differ += more;
    n += of;
  }
  if (n > 0) out.differ = static_cast<double>(differ) / static_cast<double>(n);
  return out;
}

}  // namespace

std::optional<KnownBugFound> nearest_known_bug(const Recording& recording,
                                               const Checkpoint& checkpoint,
                                               const blocks::BlockEntry& block,
                                               const HostOperands& operands, const RunFacts& facts,
                                               const std::vector<OutputCase>& cases,
                                               Device& oracle) {
  if (size_of_operands(operands) > kLargestSearched) return {};
  // What is no number anywhere looks like every bug that overflows.
  if (std::all_of(cases.begin(), cases.end(),
                  [](const OutputCase& it) { return has_no_numbers(it.evidence); }))
    return {};
  const OracleRuns runs(recording, checkpoint, block, operands, oracle);
  double failure = 0;
  for (const OutputCase& it : cases) {
    if (!runs.possible(it.evidence.name)) return {};
    failure = std::max(failure, largest_ratio(judge(it)));
  }
  // What the right block explains with other roundings needs no bug.
  const Mutant right{"", checkpoint, operands};
  const Wrong without = run(right, recording, block, facts, cases, oracle);
  for (const Rounded& rounded : without.rounded) {
    failure = std::min(failure, likeness(right, cases, without, rounded).ratio);
  }
  if (failure <= 1) return {};
  const double allowed = std::min(1.0, kTakesAway * failure);
  std::optional<KnownBugFound> nearest;
  for (const Mutant& mutant : mutants_of(recording, checkpoint, operands)) {
    try {
      const Wrong wrong = run(mutant, recording, block, facts, cases, oracle);
      for (const Rounded& rounded : wrong.rounded) {
        KnownBugFound found = likeness(mutant, cases, wrong, rounded);
        if (!(found.ratio <= allowed) || (nearest && found.ratio >= nearest->ratio)) continue;
        nearest = std::move(found);
      }
    } catch (const DeviceError&) {  // a product of the oracle is wrong
      throw;
    } catch (const Error&) {  // the block refuses to compute it
    }
  }
  return nearest;
}

}  // namespace plumb::harness
