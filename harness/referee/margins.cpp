#include "harness/referee/margins.h"

#include <algorithm>

#include "harness/referee/mutants.h"
#include "harness/referee/oracle_runs.h"
#include "kernels/core/error.h"

namespace plumb::harness {
double largest_ratio(const OutputVerdict& verdict) {
  double out = 0;
  for (const Gate& gate : verdict.gates) out = std::max(out, ratio(gate));
  return out;
}

std::vector<Margin> margins_of(const Recording& recording, const Checkpoint& checkpoint,
                               const blocks::BlockEntry& block, const HostOperands& operands,
                               const RunFacts& facts, const std::vector<OutputCase>& cases,
                               Device& oracle, const FollowedWays& followed) {
  const OracleRuns right(recording, checkpoint, block, operands, oracle);
  const bool possible = std::all_of(cases.begin(), cases.end(), [&](const OutputCase& it) {
    return right.possible(it.evidence.name);
  });
  std::vector<Margin> out;
  if (!possible) return out;
  for (const Mutant& mutant : mutants_of(recording, checkpoint, operands)) {
    OracleRuns wrong(recording, mutant.checkpoint, block, mutant.operands, oracle);
    Margin margin{std::string(mutant.bug), 0};
    bool has_room = !mutant.store;
    try {
      for (OutputCase it : cases) {
        Evidence& e = it.evidence;
        const auto way = followed.find(e.name);
        e.y = way == followed.end() ? wrong.rounded(e.name, facts.single_rounding)
                                    : wrong.rounded_as(e.name, way->second);
        if (mutant.store) has_room = mutant.store(e.y) || has_room;
        e.float64_share.reset();
        e.sample.reset();  // sketches are of the device's rows
        margin.margin = std::max(margin.margin, largest_ratio(judge(it)));
      }
    } catch (const DeviceError&) {  // a product of the oracle is wrong
      throw;
    } catch (const Error&) {
      continue;
    }
    if (has_room) out.push_back(std::move(margin));
  }
  return out;
}

void note_blindness(CheckpointResult& result) {
  for (const Margin& margin : result.margins.value_or(std::vector<Margin>())) {
    const std::string feature(feature_behind(margin.bug));
    std::vector<std::string>& from = margin.passes() ? result.features : result.blind_to;
    if (std::erase(from, feature) == 0) continue;
    (margin.passes() ? result.blind_to : result.features).push_back(feature);
  }
}

}  // namespace plumb::harness
