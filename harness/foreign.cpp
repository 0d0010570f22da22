#include "harness/foreign.h"

#include "harness/features.h"
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

}  // namespace

CheckpointResult judge_foreign(const Recording& recording, const Checkpoint& checkpoint,
                               const std::map<std::string, Tensor>& outputs, RoundingPoints points,
                               Device& oracle) {
  const BlockEntry* block = find_block(checkpoint.block);
  if (!block)
    throw Unsupported(text("no native block \"", checkpoint.block, "\" to derive limits from"));
  bool rounded = false;
  std::map<std::string, Tensor> given;
  for (const auto& [name, ref] : checkpoint.outputs) {
    const auto found = outputs.find(name);
    if (found == outputs.end()) {
      throw BadInput(text(checkpoint.id, ": output \"", name, "\" is missing"));
    }
    given[name] = in_recorded_dtype(found->second, recording.tensor_info(ref.tensor).dtype,
                                    text(checkpoint.id, ": output \"", name, '"'), rounded);
  }
  for (const auto& [name, y] : outputs) {
    if (!checkpoint.outputs.count(name)) {
      throw BadInput(text(checkpoint.id, ": has no output \"", name, '"'));
    }
  }

  CheckpointResult result;
  result.block = checkpoint.block;
  result.checkpoint = checkpoint.id;
  result.recording = recording.name();
  result.fixture = recording.folder().string();
  result.device = "external";
  result.dtype = name_of(recording.dtype());
  result.step = checkpoint.step;
  result.golden_sha256 = recording.sha256();
  const Features features = features_of(recording, checkpoint);
  result.features = features.exercised;
  result.blind_to = features.blind;

  const HostOperands operands = read_operands(recording, checkpoint, recording.dtype());
  const RunFacts facts =
      facts_of_stranger(recording, *block, checkpoint, operands, oracle, recording.dtype(), points);
  result.contract = to_string(facts.contract);
  result.fused = points == RoundingPoints::fused;
  const std::vector<OutputCase> cases =
      output_cases(recording, checkpoint, *block, operands, given, facts, oracle);
  std::vector<OutputVerdict> verdicts;
  for (const OutputCase& output : cases) {
    verdicts.push_back(judge(output));
    note_sample(output, result);
  }
  Verdict verdict = combine(std::move(verdicts));
  result.status = verdict.status;
  result.reason = verdict.reason;
  result.outputs = std::move(verdict.outputs);
  if (rounded) result.details.push_back("wider outputs were rounded to " + result.dtype);
  if (result.status == Status::fail && size_of(recording.dtype()) == 2) {
    for (const OutputCase& output : cases) {
      const std::string words = classify(
          output,
          rounding_candidates(recording, *block, checkpoint, operands, oracle, output.name));
      if (!words.empty()) result.details.push_back("bits: " + words);
    }
  }
  return result;
}

}  // namespace plumb
