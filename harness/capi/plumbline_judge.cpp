#include "harness/capi/plumbline_judge.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "harness/capi/answered.h"
#include "harness/io/safetensors.h"
#include "harness/recording/recording.h"
#include "harness/recording/recording_findings.h"
#include "harness/replay/external.h"
#include "harness/replay/recorded.h"
#include "harness/replay/result_json.h"
#include "harness/trace/asked_contract.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

CheckpointResult judged(const Recording& recording, const Checkpoint& checkpoint,
                        const Outputs& outputs, const ExternalOptions& options,
                        std::unique_ptr<Device>& oracle) {
  CheckpointResult result = external_result(recording, checkpoint);
  status_of_exception(result, checkpoint.params.where(), [&] {
    if (judged_as_recorded(checkpoint)) {
      judge_recorded(recording, checkpoint, outputs, options, result);
      return;
    }
    if (!oracle) oracle = open_device("oracle");  // starts threads, which a `module` needs not
    judge_external(recording, checkpoint, outputs, options, *oracle, result);
  });
  return result;
}

std::string judged_lines(const char* folder, const char* file, const char* contract, bool margins) {
  const AskedContract asked = asked_contract(contract);
  const ExternalOptions options{asked.points, margins};
  const Recording recording = Recording::open(folder);
  require_recorded_with(recording, asked);
  std::vector<size_t> all;
  for (size_t i = 0; i < recording.checkpoints().size(); ++i) all.push_back(i);
  const OutputsOfCheckpoints outputs =
      read_outputs(SafetensorsFile(File::open(file)), recording, all);
  std::unique_ptr<Device> oracle;
  std::string lines;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    const auto given = outputs.find(checkpoint.id);
    if (given == outputs.end()) continue;
    lines += checkpoint_json(judged(recording, checkpoint, given->second, options, oracle)) + '\n';
  }
  return lines;
}

std::string finding_lines(const char* recording) {
  std::string lines;
  for (const std::string& finding : recording_findings(recording)) lines += finding + '\n';
  return lines;
}

}  // namespace
}  // namespace plumb::harness

namespace ph = plumb::harness;

int plumbline_judge(const char* recording, const char* outputs, const char* contract, int margins,
                    char** text) {
  return ph::answered(text, [&] {
    plumb::require(recording && outputs && contract, "plumbline_judge", "a path is NULL");
    return ph::judged_lines(recording, outputs, contract, margins != 0);
  });
}

int plumbline_validate(const char* recording, char** text) {
  return ph::answered(text, [&] {
    plumb::require(recording, "plumbline_validate", "the path is NULL");
    return ph::finding_lines(recording);
  });
}

void plumbline_free(char* text) { std::free(text); }

const char* plumbline_judge_version() { return PLUMB_VERSION; }
