// Outputs of another program: what may be missing, and what one checkpoint costs.
#include "harness/recording/select.h"
#include "harness/replay/external.h"
#include "harness/replay/replay.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"

namespace plumb::harness {
namespace {

using Outputs = std::map<std::string, Tensor>;

const Checkpoint& first_of(const Recording& recording, std::string_view block) {
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block == block) return c;
  }
  throw Error(text(recording.name(), " has no ", block));
}

// What transformers made.
Outputs references(const Recording& recording, const Checkpoint& checkpoint) {
  Outputs out;
  for (const auto& [name, ref] : checkpoint.outputs) out[name] = recording.read(ref.tensor);
  return out;
}

CheckpointResult judged(const Recording& recording, const Checkpoint& checkpoint,
                        const Outputs& outputs, bool margins = true) {
  const auto oracle = open_device("oracle");
  CheckpointResult result = external_result(recording, checkpoint);
  judge_external(recording, checkpoint, outputs, {RoundingPoints::eager, margins}, *oracle, result);
  return result;
}

TEST_CASE("a cache that is not given is not judged, a result that is missing is an error") {
  const Recording recording = open_recording("llama-a1/decode-bf16");
  for (const char* block : {"attention", "kv_cache"}) {
    const Checkpoint& checkpoint = first_of(recording, block);
    Outputs outputs = references(recording, checkpoint);
    CHECK(judged(recording, checkpoint, outputs).not_judged.empty());
    outputs.erase("keys_after");
    outputs.erase("values_after");
    const CheckpointResult result = judged(recording, checkpoint, outputs);
    CHECK(result.status == Status::pass);
    CHECK(result.not_judged == std::vector<std::string>{"keys_after", "values_after"});
    CHECK(contains(result.details.front(), "\"keys_after\" was not given and is not judged"));
    CHECK(result.outputs.size() == outputs.size());
    outputs.erase(outputs.begin());
    CHECK(contains(error_text<BadInput>([&] { judged(recording, checkpoint, outputs); }),
                   outputs.empty() ? "no output is given" : "is missing"));
  }
}

TEST_CASE("an output of a wrong name gets the nearest right one") {
  const Recording recording = open_recording("llama-a1/decode-bf16");
  const Checkpoint& checkpoint = first_of(recording, "kv_cache");
  Outputs outputs = references(recording, checkpoint);
  outputs["key"] = outputs["keys"];
  CHECK(contains(error_text<BadInput>([&] { judged(recording, checkpoint, outputs); }),
                 "has no output \"key\"; did you mean keys?"));
}

TEST_CASE("a block without native code is unsupported, by the words of an error that is settled") {
  const Recording recording = open_recording("llama-a1/whole-f32");
  Checkpoint checkpoint = first_of(recording, "rms_norm");
  checkpoint.block = "flux_capacitor";
  CheckpointResult result = external_result(recording, checkpoint);
  status_of_exception(result, "here", [&] {
    result = judged(recording, checkpoint, references(recording, checkpoint));
  });
  CHECK(result.status == Status::unsupported);
  CHECK(contains(result.reason, "no native block \"flux_capacitor\""));
}

TEST_CASE("a verdict says which bugs would pass, unless that is switched off") {
  const Recording recording = open_recording("llama-a1/decode-bf16");
  const Checkpoint& checkpoint = first_of(recording, "rms_norm");
  const Outputs outputs = references(recording, checkpoint);
  const CheckpointResult result = judged(recording, checkpoint, outputs);
  REQUIRE(result.margins);
  const auto eps = std::find_if(result.margins->begin(), result.margins->end(),
                                [](const Margin& m) { return m.bug == "eps ten times as large"; });
  REQUIRE(eps != result.margins->end());
  CHECK(eps->passes());
  CHECK(std::count(result.blind_to.begin(), result.blind_to.end(), "eps") == 1);
  CHECK_FALSE(judged(recording, checkpoint, outputs, false).margins);
}

}  // namespace
}  // namespace plumb::harness
