// Which of many failures are explained where that takes seconds.
#include "harness/referee/explain.h"

#include "harness/referee/referee_rule.h"
#include "kernels/core/error.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

std::string why_unexplained_as(const Recording& recording, Checkpoint checkpoint,
                               const std::string& id, const std::string& device = "cpu") {
  checkpoint.id = id;
  return why_unexplained(recording, checkpoint, device);
}

// The recordings are small: a checkpoint with the weights of all others, many times.
Checkpoint with_large_weights(const Recording& recording) {
  Checkpoint out = recording.checkpoints().front();
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    for (const auto& [name, key] : checkpoint.weights) {
      for (int i = 0; i < 100; ++i) out.weights[text(checkpoint.id, name, i)] = key;
    }
  }
  return out;
}

TEST_CASE("the first two failures of a kind are explained where that takes seconds") {
  const Recording recording = Recording::open("fixtures/llama-a1/decode-f32");
  const Checkpoint dear = with_large_weights(recording);
  REQUIRE(is_dear(recording, dear));
  const std::string first = "model.layers.0.self_attn:sdpa#0",
                    second = "model.layers.11.self_attn:sdpa#3";
  REQUIRE(why_unexplained_as(recording, dear, first).empty());
  REQUIRE(why_unexplained_as(recording, dear, second).empty());
  REQUIRE(why_unexplained_as(recording, dear, first).empty());  // alone it always is
  REQUIRE_THAT(why_unexplained_as(recording, dear, "model.layers.2.self_attn:sdpa#0"),
               Catch::Contains(first + " and " + second));
  REQUIRE(why_unexplained_as(recording, dear, "model.layers.2.self_attn:sdpa#0", "cuda:0").empty());
  REQUIRE(why_unexplained_as(recording, dear, "model.layers.2.mlp#0").empty());
}

TEST_CASE("every failure is explained where that takes no time") {
  const Recording recording = Recording::open("fixtures/llama-a1/decode-f32");
  const Checkpoint& cheap = recording.checkpoints().front();
  REQUIRE_FALSE(is_dear(recording, cheap));
  for (const char* id : {"a.0#0", "a.1#0", "a.2#0", "a.3#0"}) {
    REQUIRE(why_unexplained_as(recording, cheap, id).empty());
  }
}

}  // namespace
}  // namespace plumb::harness
