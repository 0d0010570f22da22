// Transformers' own outputs, judged like any program's: a judge that fails them is wrong.
#include <algorithm>

#include "harness/recording/select.h"
#include "harness/referee/cases.h"
#include "harness/replay/external.h"
#include "kernels/core/error.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

bool is_sampled(const Checkpoint& checkpoint) {
  return std::any_of(checkpoint.outputs.begin(), checkpoint.outputs.end(),
                     [](const auto& output) { return output.second.sampled.has_value(); });
}

CheckpointResult judged_whole(const Recording& recording, const Checkpoint& checkpoint,
                              Device& oracle) {
  std::map<std::string, Tensor> outputs;
  for (const auto& [name, ref] : checkpoint.outputs) outputs[name] = recording.read(ref.tensor);
  CheckpointResult result = external_result(recording, checkpoint);
  judge_external(recording, checkpoint, outputs, {{}, false}, oracle, result);
  return result;
}

// The reference's whole output is not recorded: its chosen rows and its sketch replace it.
CheckpointResult judged_by_rows(const Recording& recording, const Checkpoint& checkpoint,
                                Device& oracle) {
  const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
  const DType dtype = recording.dtype();
  const HostOperands operands = read_operands(recording, checkpoint, dtype);
  std::map<std::string, Tensor> outputs;
  for (const OutputSpec& spec : operands.outputs) {
    outputs[spec.name] = host_tensor(spec.dtype, spec.shape);
    std::fill_n(outputs[spec.name].data<char>(), outputs[spec.name].bytes(), 0);
    const OutputRef& ref = checkpoint.outputs.at(spec.name);
    if (!ref.sampled) outputs[spec.name] = recording.read(ref.tensor);
  }
  const RoundingPoints points = recording.contracts().at(checkpoint.contract).points;
  const RunFacts facts =
      external_facts(recording, block, checkpoint, operands, oracle, dtype, points);
  std::vector<OutputVerdict> verdicts;
  for (OutputCase& output :
       output_cases(recording, checkpoint, block, operands, outputs, facts, oracle)) {
    if (output.evidence.sample) {
      output.evidence.y = output.evidence.reference;
      output.evidence.sample->y = output.evidence.sample->reference;
    }
    verdicts.push_back(judge(output));
  }
  const Verdict verdict = combine(std::move(verdicts));
  CheckpointResult result;
  result.status = verdict.status;
  result.reason = verdict.reason;
  return result;
}

}  // namespace

TEST_CASE("reference: what transformers computed passes in every recording") {
  const auto oracle = open_device("oracle");
  int64_t judged = 0, by_rows = 0;
  for (const auto& folder : find_recordings(default_fixtures())) {
    const Recording recording = Recording::open(folder);
    for (const Checkpoint& checkpoint : recording.checkpoints()) {
      const bool sampled = is_sampled(checkpoint);
      const CheckpointResult result = sampled ? judged_by_rows(recording, checkpoint, *oracle)
                                              : judged_whole(recording, checkpoint, *oracle);
      INFO(recording.name() << " " << checkpoint.id << ": " << result.reason);
      CHECK((result.status == Status::pass || result.status == Status::blind));
      ++judged;
      by_rows += sampled;
    }
  }
  CHECK(judged > by_rows);
  CHECK(by_rows > 0);
}

}  // namespace plumb::harness
