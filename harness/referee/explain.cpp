#include "harness/referee/explain.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>

#include "harness/referee/known_bug.h"
#include "harness/referee/referee_rule.h"
#include "harness/referee/rounding_family.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Whether the bits of an output can follow roundings: not where some of them are NaN by mistake.
bool has_roundings(const CheckpointResult& result, const std::string& output) {
  const auto judged = std::find_if(result.outputs.begin(), result.outputs.end(),
                                   [&](const auto& it) { return it.name == output; });
  return judged != result.outputs.end() && judged->classes.wrong == 0 && !is_gross(*judged);
}

// "model.layers.#.mlp#" of model.layers.12.mlp#0.
std::string without_numbers(const std::string& id) {
  std::string out;
  for (const char c : id) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit || out.empty() || out.back() != '#') out += digit ? '#' : c;
  }
  return out;
}

}  // namespace

void explain_failure(const Recording& recording, const Checkpoint& checkpoint,
                     const blocks::BlockEntry& block, const HostOperands& operands,
                     const RunFacts& facts, const std::vector<OutputCase>& cases, Device& oracle,
                     CheckpointResult& result) {
  const bool comparable = std::all_of(cases.begin(), cases.end(), [](const OutputCase& output) {
    return output.evidence.has_expected_shape();
  });
  if (!comparable) return;
  result.known_bug =
      nearest_known_bug(recording, checkpoint, block, operands, facts, cases, oracle);
  if (result.known_bug) {
    result.reason += "; " + words_of(*result.known_bug);
    if (!result.known_bug->rounds.empty()) {
      result.diagnosis = result.known_bug->rounds + ", with the known bug";
    }
    return;
  }
  const bool searched = !result.diagnosis.empty();
  if (searched || size_of(facts.dtype) != 2 || block.bits == blocks::BitRule::exact) return;
  OracleRuns runs(recording, checkpoint, block, operands, oracle);
  for (const OutputCase& output : cases) {
    if (!has_roundings(result, output.evidence.name)) continue;
    const std::string words = words_of(follow_roundings(output, runs, block.name == "sdpa"));
    if (!words.empty()) add_diagnosis(result, cases.size() > 1 ? output.evidence.name : "", words);
  }
  if (!result.diagnosis.empty()) result.details.push_back("bits: " + result.diagnosis);
}

std::string why_unexplained(const Recording& recording, const Checkpoint& checkpoint,
                            const std::string& device) {
  constexpr size_t kMost = 2;
  if (!is_dear(recording, checkpoint)) return {};
  static std::mutex mutex;
  static std::map<std::string, std::vector<std::string>> explained;
  const std::lock_guard lock(mutex);
  std::vector<std::string>& ids =
      explained[text(recording.sha256(), ' ', device, ' ', without_numbers(checkpoint.id))];
  if (std::find(ids.begin(), ids.end(), checkpoint.id) != ids.end()) return {};
  if (ids.size() == kMost) {
    return text("not explained, as that takes seconds; explained are ", ids[0], " and ", ids[1],
                ", the same of another layer or step");
  }
  ids.push_back(checkpoint.id);
  return {};
}

}  // namespace plumb::harness
