// What a checkpoint is called blind to, against what the known bugs come to in it.
#include "harness/referee/features.h"

#include <algorithm>
#include <optional>

#include "harness/recording/select.h"
#include "harness/referee/mutants.h"
#include "harness/replay/replay.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

struct Told {
  std::string checkpoint;
  bool seen = false, blind = false;
  std::optional<double> margin;  // of the feature's known bug
};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Of every checkpoint of these blocks that has the feature, or room for its bug.
std::vector<Told> told(const std::string& recording_name, const std::vector<std::string>& blocks,
                       const std::string& feature) {
  const Recording recording = open_recording(recording_name);
  const auto device = open_device("cpu", 1), oracle = open_device("oracle");
  ReplayOptions options;
  options.margins = true;
  Replayer replayer(recording, *device, *oracle, options);
  std::vector<Told> out;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    if (!has(blocks, checkpoint.block)) continue;
    const Features features = features_of(recording, checkpoint);
    Told it{recording_name + " " + checkpoint.id,
            has(features.exercised, feature),
            has(features.blind, feature),
            {}};
    const CheckpointResult result = replayer.run(checkpoint);
    for (const Margin& margin : result.margins.value_or(std::vector<Margin>())) {
      if (feature_behind(margin.bug) == feature) it.margin = margin.margin;
    }
    if (it.seen || it.blind || it.margin) out.push_back(it);
  }
  return out;
}

TEST_CASE("a window that fails when it is another one is not called blind") {
  int filled = 0, unreached = 0;
  for (const char* recording : {"gemma2-a4/decode-bf16", "gemma2-a4/chunked-f32",
                                "gemma2-a4/whole-f32-t4", "gemma2-a4/decode-f32-static"}) {
    const std::vector<std::string> blocks = {"sdpa", "attention", "causal_mask"};
    for (const Told& it : told(recording, blocks, "window")) {
      INFO(it.checkpoint << ": margin " << it.margin.value_or(-1));
      REQUIRE(it.margin);
      CHECK(it.seen != it.blind);
      CHECK(it.seen == (*it.margin > 1));
      unreached += it.blind;
    }
    for (const Told& it : told(recording, blocks, "longer_window")) {
      INFO(it.checkpoint << ": margin " << it.margin.value_or(-1));
      CHECK(it.seen == (*it.margin > 1));
      filled += it.blind;
    }
  }
  CHECK(unreached > 0);
  CHECK(filled > unreached);  // the first key is the last that the window lets in
}

TEST_CASE("eps is seen or blind in 16 bits, and never silent") {
  int seen = 0, blind = 0;
  for (const char* recording : {"llama-a1/decode-bf16", "gemma2-a4/decode-bf16",
                                "llama-x2/padded-decode-f16", "blocks/whole-bf16"}) {
    for (const Told& it : told(recording, {"rms_norm"}, "eps")) {
      INFO(it.checkpoint << ": margin " << it.margin.value_or(-1));
      REQUIRE(it.margin);
      CHECK(it.seen != it.blind);
      if (it.seen) CHECK(*it.margin > 1);
      if (it.blind) CHECK(*it.margin < 2);  // the finder's own count of bits is not the gates'
      seen += it.seen;
      blind += it.blind;
    }
  }
  CHECK(seen > 0);
  CHECK(blind > 0);
}

TEST_CASE("denormals that a kernel may flush are seen or listed as blind") {
  int listed = 0;
  for (const char* recording : {"gemma2-a4/whole-f16", "border-llama32-1b/whole-f16-attention"}) {
    const std::vector<std::string> blocks = {"rms_norm",   "glu_mlp",        "linear",
                                             "activation", "glu_activation", "rotary_table"};
    for (const Told& it : told(recording, blocks, "denormals")) {
      INFO(it.checkpoint << ": margin " << it.margin.value_or(-1));
      REQUIRE(it.margin);
      CHECK(it.seen != it.blind);
      CHECK(it.seen == (*it.margin > 1));
      ++listed;
    }
  }
  CHECK(listed > 0);
}

TEST_CASE("a softcap whose absence fails is not called blind") {
  for (const Told& it : told("border-gemma2-2b/decode-bf16", {"sdpa"}, "softcap")) {
    INFO(it.checkpoint << ": margin " << it.margin.value_or(-1));
    REQUIRE(it.margin);
    CHECK(it.seen == (*it.margin > 1));
  }
}

}  // namespace
}  // namespace plumb::harness
