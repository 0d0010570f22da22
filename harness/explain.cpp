#include "harness/explain.h"

#include <algorithm>

#include "harness/conformance.h"
#include "harness/known_bug.h"

namespace plumb {
namespace {

// Whether the bits of an output can follow roundings: not where some of them are NaN by mistake.
bool has_roundings(const CheckpointResult& result, const std::string& output) {
  const auto judged = std::find_if(result.outputs.begin(), result.outputs.end(),
                                   [&](const auto& it) { return it.name == output; });
  return judged != result.outputs.end() && judged->classes.wrong == 0;
}

}  // namespace

void explain_failure(const Recording& recording, const Checkpoint& checkpoint,
                     const BlockEntry& block, const HostOperands& operands, const RunFacts& facts,
                     const std::vector<OutputCase>& cases, Device& oracle,
                     CheckpointResult& result) {
  result.known_bug =
      nearest_known_bug(recording, checkpoint, block, operands, facts, cases, oracle);
  if (result.known_bug) {
    result.reason += "; " + words_of(*result.known_bug);
    if (result.known_bug->rounds.empty()) return;
    result.diagnosis = "rounds like: " + result.known_bug->rounds + ", with the known bug";
  } else if (size_of(facts.dtype) == 2 && block.bits != BitRule::exact) {
    for (const OutputCase& output : cases) {
      if (!has_roundings(result, output.name)) continue;
      const std::string words = classify(
          output, rounding_candidates(recording, block, checkpoint, operands, oracle, output.name));
      if (words.empty()) continue;
      const std::string prefix = cases.size() > 1 ? output.name + ": " : "";
      result.diagnosis += (result.diagnosis.empty() ? "" : "; ") + prefix + words;
    }
  }
  if (!result.diagnosis.empty()) result.details.push_back("bits: " + result.diagnosis);
}

}  // namespace plumb
