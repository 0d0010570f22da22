#include "harness/replay/external.h"

#include <algorithm>

#include "harness/io/nearest_name.h"
#include "harness/replay/explain.h"
#include "harness/replay/features.h"
#include "harness/replay/margins.h"
#include "harness/replay/rounding_family.h"
#include "kernels/error.h"

namespace plumb {
namespace {

// y in the dtype of the recorded output; throws BadInput when that is no rounding of floats.
Tensor in_recorded_dtype(const Tensor& y, DType recorded, const std::string& where, bool& rounded) {
  if (y.dtype() == recorded) return y;
  const bool wider =
      is_floating(y.dtype()) && is_floating(recorded) && size_of(y.dtype()) > size_of(recorded);
  if (!wider) {
    throw BadInput(text(where, " is ", name_of(y.dtype()), ", the recording has ",
                        name_of(recorded),
                        "; give that dtype, or f32 or f64 numbers to be rounded to it"));
  }
  rounded = true;
  return converted(y, recorded);
}

// Lets the output be held to the rounding points that its bits follow, and says which. Attention
// that follows none is judged by its errors alone: how its keys were divided is unknown.
std::string follow_bits(const BlockEntry& block, std::optional<RoundingPoints> demanded,
                        RoundingPoints recorded, OracleRuns& runs, OutputCase& output) {
  const bool determined = block.bits != BitRule::exact && block.bits != BitRule::none;
  if (!determined || !output.has_expected_shape() || size_of(output.contract.storage) != 2)
    return {};
  const bool attention = block.name == "sdpa";
  const Following following = follow_roundings(output, runs, attention, demanded);
  if (following.members.empty()) return {};
  const FamilyMember& member = following.member();
  const bool conforms = following.conforms();
  const bool flash = demanded.value_or(RoundingPoints::flash) == RoundingPoints::flash;
  output.conformance = conforms || !(attention && flash);
  if (conforms || demanded) {
    output.model = member.model;
    output.held_to_model = member.way.points != recorded;
    output.rounding = conforms ? member.way.name : "";
    output.rounded = [name = output.name, way = member.way](OracleRuns& other) {
      return other.rounded_as(name, way);
    };
    output.simulate = [&runs, name = output.name, way = member.way](int count) {
      return runs.simulated_as(name, way, count);
    };
  } else if (!output.conformance) {
    // Eager code rounds its scores: its error would hide a softmax in 16 bits.
    output.model = following.flash();
    output.held_to_model = true;
    output.simulate = {};
  }
  return conforms || !demanded ? words_of(following) : "";
}

// A state that a call leaves behind, beside its result: a program may keep it elsewhere.
bool is_optional(const Checkpoint& checkpoint, const std::string& output) {
  const auto is_state = [](const std::string& name) { return name.ends_with("_after"); };
  return is_state(output) && std::any_of(checkpoint.outputs.begin(), checkpoint.outputs.end(),
                                         [&](const auto& it) { return !is_state(it.first); });
}

using Outputs = std::map<std::string, Tensor>;

// What there is to judge, in the recorded dtypes; notes what is not given.
Outputs given_outputs(const Recording& recording, const Checkpoint& checkpoint,
                      const Outputs& outputs, CheckpointResult& result) {
  bool rounded = false;
  Outputs given;
  for (const auto& [name, y] : outputs) {
    if (checkpoint.outputs.count(name)) continue;
    std::vector<std::string> known;
    for (const auto& [one, ref] : checkpoint.outputs) known.push_back(one);
    throw BadInput(text(checkpoint.id, ": has no output \"", name, '"', did_you_mean(name, known)));
  }
  for (const auto& [name, ref] : checkpoint.outputs) {
    const auto found = outputs.find(name);
    if (found != outputs.end()) {
      given[name] = in_recorded_dtype(found->second, recording.tensor_info(ref.tensor).dtype,
                                      text(checkpoint.id, ": output \"", name, '"'), rounded);
    } else if (is_optional(checkpoint, name)) {
      result.not_judged.push_back(name);
      result.details.push_back(text("output \"", name, "\" was not given and is not judged"));
    } else {
      throw BadInput(text(checkpoint.id, ": output \"", name, "\" is missing"));
    }
  }
  if (rounded) result.details.push_back("wider outputs were rounded to " + result.dtype);
  return given;
}

}  // namespace

CheckpointResult external_result(const Recording& recording, const Checkpoint& checkpoint) {
  CheckpointResult result;
  result.block = checkpoint.block;
  result.checkpoint = checkpoint.id;
  result.recording = recording.name();
  result.fixture = recording.folder().string();
  result.device = "external";
  result.dtype = name_of(recording.dtype());
  result.step = checkpoint.step;
  result.golden_sha256 = recording.sha256();
  return result;
}

void judge_external(const Recording& recording, const Checkpoint& checkpoint,
                    const Outputs& outputs, const ExternalOptions& options, Device& oracle,
                    CheckpointResult& result) {
  const BlockEntry* block = find_block(checkpoint.block);
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
  result.contract = to_string(facts.contract);
  result.fused = points != RoundingPoints::eager;
  std::vector<OutputCase> cases =
      output_cases(recording, checkpoint, *block, operands, given, facts, oracle);
  std::vector<OutputVerdict> verdicts;
  OracleRuns runs(recording, checkpoint, *block, operands, oracle);
  for (OutputCase& output : cases) {
    const std::string words = follow_bits(*block, options.demanded, recorded, runs, output);
    if (!words.empty()) add_diagnosis(result, cases.size() > 1 ? output.name : "", words);
    verdicts.push_back(judge(output));
    note_sample(output, result);
  }
  if (!result.diagnosis.empty()) result.details.push_back("bits: " + result.diagnosis);
  Verdict verdict = combine(std::move(verdicts));
  result.status = verdict.status;
  result.reason = verdict.reason;
  result.outputs = std::move(verdict.outputs);
  if (options.margins) {
    result.margins = margins_of(recording, checkpoint, *block, operands, facts, cases, oracle);
    note_blindness(result);
  }
  if (result.status == Status::fail) {
    explain_failure(recording, checkpoint, *block, operands, facts, cases, oracle, result);
  }
}

}  // namespace plumb
