// Known bugs in the place of the device: most are far from passing, and which are not is known.
#include "harness/referee/margins.h"

#include <cmath>
#include <map>
#include <set>

#include "harness/recording/select.h"
#include "harness/referee/mutants.h"
#include "harness/replay/replay.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

using Margins = std::map<std::string, double>;

Margins margins_of(const Recording& recording, const Checkpoint& checkpoint,
                   const std::string& device = "cpu") {
  const auto under_test = open_device(device, 1), oracle = open_device("oracle");
  ReplayOptions options;
  options.margins = true;
  const CheckpointResult result =
      Replayer(recording, *under_test, *oracle, options).run(checkpoint);
  INFO(checkpoint.id << ": " << result.reason);
  CHECK((result.status == Status::pass || result.status == Status::blind));
  REQUIRE(result.margins);
  Margins out;
  for (const Margin& it : *result.margins) out[it.bug] = it.margin;
  return out;
}

using ByBlock = std::map<std::string, const Checkpoint*>;

// The first checkpoint of every block.
ByBlock firsts(const Recording& recording) {
  ByBlock out;
  for (const Checkpoint& c : recording.checkpoints()) out.try_emplace(c.block, &c);
  return out;
}

ByBlock lasts(const Recording& recording) {
  ByBlock out;
  for (const Checkpoint& c : recording.checkpoints()) out[c.block] = &c;
  return out;
}

TEST_CASE("known bugs are caught in float32, but one that a short sequence does not show") {
  const Recording recording = Recording::open(default_fixtures() / "gemma2-a4/whole-f32");
  const Margins sdpa = margins_of(recording, *firsts(recording).at("sdpa"));
  const std::set<std::string> expected = {"scale left out",
                                          "scale 1 percent too large",
                                          "softcap left out",
                                          "window one key longer",
                                          "window one key shorter",
                                          "each query sees the next key",
                                          "query heads on another group's keys"};
  for (const std::string& bug : expected) {
    INFO(bug);
    CHECK(sdpa.at(bug) > 10);
  }
  CHECK(sdpa.size() == expected.size());
  // Fewer tokens than the window has keys.
  const Recording brief = Recording::open(default_fixtures() / "gemma2-a4/whole-f32-t4");
  const Margins blind = margins_of(brief, *firsts(brief).at("sdpa"));
  CHECK(blind.at("window one key longer") < 1);
  CHECK(blind.at("each query sees the next key") > 10);
}

TEST_CASE("of a copy any wrong element is beyond every limit, in float64 as well") {
  const Recording recording = Recording::open(default_fixtures() / "gemma2-a4/whole-f32");
  const Checkpoint& norm = *firsts(recording).at("rms_norm");
  CHECK(margins_of(recording, norm, "oracle").at("norm weight left out") > 1e6);
  const Margins mask = margins_of(recording, *firsts(recording).at("causal_mask"));
  CHECK(std::isinf(mask.at("each query sees the next key")));
}

TEST_CASE("16 bits see a cast in another place, and 32 bits have none to see") {
  const char* const bug = "norm weight on the other side of the cast";
  const Recording narrow = Recording::open(default_fixtures() / "llama-a1/decode-bf16");
  CHECK(margins_of(narrow, *firsts(narrow).at("rms_norm")).at(bug) > 2);
  const Recording wide = Recording::open(default_fixtures() / "llama-a1/whole-f32");
  CHECK(margins_of(wide, *firsts(wide).at("rms_norm")).count(bug) == 0);
}

TEST_CASE("every known bug is caught by some recording") {
  std::map<std::string, double> best;
  for (const char* name :
       {"llama-a1/decode-bf16", "gemma2-a4/padded-decode-f32", "llama-a3-yarn/whole-f32",
        "zamba2-a8/decode-f32", "llama-x2/padded-decode-f16"}) {
    const Recording recording = Recording::open(default_fixtures() / name);
    for (const ByBlock& some : {firsts(recording), lasts(recording)}) {
      for (const auto& [block, checkpoint] : some) {
        for (const auto& [bug, margin] : margins_of(recording, *checkpoint)) {
          best[bug] = std::max(best[bug], margin);
        }
      }
    }
  }
  for (const std::string_view bug : known_bugs()) {
    INFO(bug);
    CHECK(best[std::string(bug)] > 2);
  }
}

TEST_CASE("a layer without rotary embedding has no room for another one") {
  const Recording recording = Recording::open(default_fixtures() / "zamba2-a7/whole-f32");
  const Margins layer = margins_of(recording, *firsts(recording).at("hybrid_layer"));
  CHECK(layer.count("rotary pairs for halves, or halves for pairs") == 0);
  CHECK(layer.count("positions one later") == 0);
}

// What the features say of a checkpoint, and what a bug that only they show comes to.
struct Told {
  bool has, blind, passes;
};

Told told(const std::string& recording, const std::string& id, const std::string& feature,
          const std::string& bug) {
  const Recording of = Recording::open(default_fixtures() / recording);
  const auto device = open_device("cpu", 1), oracle = open_device("oracle");
  ReplayOptions options;
  options.margins = true;
  for (const Checkpoint& checkpoint : of.checkpoints()) {
    if (checkpoint.id != id) continue;
    const CheckpointResult result = Replayer(of, *device, *oracle, options).run(checkpoint);
    const auto among = [&](const std::vector<std::string>& names) {
      return std::count(names.begin(), names.end(), feature) == 1;
    };
    for (const Margin& margin : *result.margins) {
      if (margin.bug != bug) continue;
      return {among(result.features) != among(result.blind_to), among(result.blind_to),
              margin.passes()};
    }
  }
  throw Error("no " + bug + " in " + id);
}

TEST_CASE("features and margins say the same") {
  const char* const next = "each query sees the next key";
  // The last of the keys; the window must not move with the query.
  Told it = told("gemma2-a4/decode-f32", "model:causal_mask.sliding_attention#1", "causal", next);
  CHECK((it.has && it.blind && it.passes));
  // The keys behind it are empty slots, which key_valid hides as well.
  it = told("llama-a1/padded-decode-f32-static", "model:causal_mask#1", "causal", next);
  CHECK((it.has && it.blind && it.passes));
  it = told("llama-a1/whole-f32", "model.layers.0.self_attn:sdpa#0", "causal", next);
  CHECK((it.has && !it.blind && !it.passes));
  // Its data reach the softcap's knee, and bf16 does not show it.
  it = told("gemma2-a4/decode-bf16-static", "model.layers.0#0", "softcap", "softcap left out");
  CHECK((it.has && it.blind && it.passes));
}

TEST_CASE("margins are of those who asked for them") {
  const Recording recording = Recording::open(default_fixtures() / "llama-a1/whole-f32");
  const auto device = open_device("cpu", 1), oracle = open_device("oracle");
  const CheckpointResult result =
      Replayer(recording, *device, *oracle, {}).run(recording.checkpoints().front());
  CHECK_FALSE(result.margins);
  CHECK(result.determinism == Determinism::d0);
  CHECK(result.runs == 2);
}

}  // namespace
}  // namespace plumb::harness
