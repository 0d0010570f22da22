#include "harness/replay/external.h"

#include <algorithm>

#include "harness/referee/cases.h"
#include "harness/referee/explain.h"
#include "harness/referee/features.h"
#include "harness/referee/margins.h"
#include "harness/referee/rounding_family.h"
#include "harness/replay/native_block.h"
#include "harness/replay/recorded.h"
#include "harness/replay/recorded_bits.h"
#include "harness/trace/asked_contract.h"
#include "harness/trace/stated_error.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Lets the output be held to the rounding points that its bits follow, and says which. Attention
// that follows none is judged by its errors alone: how its keys were divided is unknown.
std::string follow_bits(const blocks::BlockEntry& block, std::optional<RoundingPoints> demanded,
                        RoundingPoints recorded, OracleRuns& runs, OutputCase& output,
                        FollowedWays& followed) {
  Evidence& e = output.evidence;
  Rule& rule = output.rule;
  const bool determined =
      block.bits != blocks::BitRule::exact && block.bits != blocks::BitRule::none;
  if (!determined || !e.has_expected_shape() || size_of(rule.contract.storage) != 2) return {};
  const bool attention = block.name == "sdpa";
  const Following following = follow_roundings(output, runs, attention, demanded);
  if (following.members.empty()) return {};
  const FamilyMember& member = following.member();
  const bool conforms = following.conforms();
  const bool flash = demanded.value_or(RoundingPoints::flash) == RoundingPoints::flash;
  rule.conformance = conforms || !(attention && flash);
  if (conforms || demanded) {
    e.model = member.model;
    rule.held_to_model = member.way.points != recorded;
    rule.rounding = conforms ? member.way.name : "";
    followed[e.name] = member.way;
    output.allowance.simulate = [&runs, name = e.name, way = member.way](int count) {
      return runs.simulated_as(name, way, count);
    };
  } else if (!rule.conformance) {
    // Eager code rounds its scores: its error would hide a softmax in 16 bits.
    e.model = following.flash();
    rule.held_to_model = true;
    output.allowance.simulate = {};
  }
  return conforms || !demanded ? words_of(following) : "";
}

}  // namespace

void judge_external(const Recording& recording, const Checkpoint& checkpoint,
                    const Outputs& outputs, const ExternalOptions& options, Device& oracle,
                    CheckpointResult& result) {
  if (options.alone || judged_as_recorded(checkpoint)) {
    const bool backward = !options.alone && !forward_of(checkpoint.block).empty();
    const blocks::BlockEntry* gradients = backward ? native_block(checkpoint) : nullptr;
    if (!gradients) return judge_recorded(recording, checkpoint, outputs, options, result);
    const Checkpoint given = with_params(recording, checkpoint);
    const HostOperands operands = read_operands(recording, given, recording.dtype());
    return judge_recorded(recording, checkpoint, outputs, options, result,
                          redrawn_gradients(recording, given, *gradients, operands, oracle));
  }
  const blocks::BlockEntry* block = blocks::find_block(checkpoint.block);
  if (!block)
    throw Unsupported(text("no native block \"", checkpoint.block, "\" to derive limits from"));
  const Outputs given = given_outputs(recording, checkpoint, outputs, result);
  const Features features = features_of(recording, checkpoint);
  result.features = features.exercised;
  result.blind_to = features.blind;

  const HostOperands operands = read_operands(recording, checkpoint, recording.dtype());
  const RoundingPoints recorded = recording.contracts().at(checkpoint.contract).points;
  const RoundingPoints points = options.demanded.value_or(recorded);
  const RunFacts facts =
      external_facts(recording, *block, checkpoint, operands, oracle, recording.dtype(), points);
  result.contract = contract_text(facts.contract, checkpoint.inside);
  note_inside(checkpoint, result);
  result.fused = points != RoundingPoints::eager;
  std::vector<OutputCase> cases =
      output_cases(recording, checkpoint, *block, operands, given, facts, oracle);
  std::vector<OutputVerdict> verdicts;
  OracleRuns runs(recording, checkpoint, *block, operands, oracle);
  FollowedWays followed;
  for (OutputCase& output : cases) {
    const std::string words =
        checkpoint.inside.empty()
            ? follow_bits(*block, options.demanded, recorded, runs, output, followed)
            : follow_recorded_bits(recording, checkpoint, options.demanded, output);
    verdicts.push_back(judge(output));
    require_stated_error(checkpoint, output.evidence, verdicts.back());
    if (!words.empty() && !is_gross(verdicts.back())) {
      add_diagnosis(result, cases.size() > 1 ? output.evidence.name : "", words);
    }
    note_sample(output, result);
  }
  if (!result.diagnosis.empty()) result.details.push_back("bits: " + result.diagnosis);
  Verdict verdict = combine(std::move(verdicts));
  result.status = verdict.status;
  result.reason = verdict.reason;
  result.outputs = std::move(verdict.outputs);
  if (options.margins) {
    result.margins =
        margins_of(recording, checkpoint, *block, operands, facts, cases, oracle, followed);
    note_blindness(result);
  }
  if (result.status == Status::fail) {
    explain_failure(recording, checkpoint, *block, operands, facts, cases, oracle, result);
  }
}

}  // namespace plumb::harness
