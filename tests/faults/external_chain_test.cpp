// Logits that another program gave, in which a token's winner is another one.
#include "harness/chain/external_chain.h"

#include <algorithm>
#include <cmath>

#include "harness/execution/converted.h"
#include "harness/recording/select.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

const Gate& gate_of(const CheckpointResult& result, const std::string& name) {
  for (const OutputVerdict& output : result.outputs) {
    for (const Gate& gate : output.gates) {
      if (gate.name == name) return gate;
    }
  }
  throw std::runtime_error(name);
}

TEST_CASE("a winner that changes is caught at every token where errors do not reach it") {
  const char* const name = GENERATE("llama-a1/decode-bf16", "llama-a1/decode-f32");
  const Recording recording = Recording::open(default_fixtures() / name);
  const auto oracle = open_device("oracle");
  ChainOutputs right;
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block != "lm_head") continue;
    const Tensor logits = recording.read(c.outputs.at("out").tensor);
    right[c.id]["out"] = converted(converted(logits, DType::f64), DType::f32);  // a copy
  }
  const CheckpointResult passes = judge_chain(recording, right, *oracle);
  REQUIRE(passes.status == Status::pass);
  const double decidable = gate_of(passes, "top-1").derivation.at(0).value;
  int64_t tokens = 0;
  double told = 0;
  for (auto& [id, outputs] : right) {
    const Tensor logits = outputs.at("out");
    const int64_t vocabulary = logits.dim(2);
    for (int64_t token = 0; token < logits.dim(0) * logits.dim(1); ++token, ++tokens) {
      float* const first = logits.data<float>() + token * vocabulary;
      float* const best = std::max_element(first, first + vocabulary);
      const float kept = *best;
      *best = -INFINITY;
      float* const second = std::max_element(first, first + vocabulary);
      *best = *second;
      *second = kept;
      const CheckpointResult result = judge_chain(recording, right, *oracle);
      if (!gate_of(result, "top-1").passed) {
        CHECK(result.status == Status::fail);
        ++told;
      }
      std::swap(*best, *second);
    }
  }
  CHECK(decidable > 0.5 * static_cast<double>(tokens));
  // Where a winner is another one, simulated kernels say how far errors reach.
  CHECK(told <= decidable);
  CHECK(told > 0.5 * decidable);
}

}  // namespace
}  // namespace plumb::harness
