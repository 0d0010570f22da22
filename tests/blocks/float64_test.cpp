// Two float64 paths, transformers' own code lifted to float64 and the oracle device, agree on every
// recorded checkpoint: |y - o| <= 1e-12 max|o| + 2^-24 |delta| per element. The proof that the
// semantics are right.
#include <map>

#include "harness/recording/select.h"
#include "harness/replay/replay.h"
#include "tests/blocks/support.h"
#include "tests/faults/faulty_device.h"

namespace plumb::blocks::testing {
namespace {

bool has_gate(const harness::CheckpointResult& result, const char* name) {
  for (const harness::OutputVerdict& output : result.outputs) {
    for (const harness::Gate& gate : output.gates) {
      if (gate.name == name) return true;
    }
  }
  return false;
}

// y (1 + 1e-11): ten times what is allowed at the largest element.
void enlarge(const Tensor& t) {
  if (t.dtype() != DType::f64) return;
  for_each_row(t, [&](int64_t offset) {
    for (int64_t i = 0; i < t.dim(-1); ++i) t.data<double>()[offset + i] *= 1 + 1e-11;
  });
}

template <auto Op>
auto enlarged() {
  return [](harness::testing::Call& c, const Tensor& out, const auto&... rest) {
    (c.ops.*Op)(out, rest...);
    enlarge(out);
  };
}

}  // namespace

TEST_CASE("every recorded checkpoint agrees with the oracle device in float64 to 1e-12") {
  const auto oracle = open_device("oracle");
  std::map<std::string, int> judged;
  for (const auto& folder : harness::find_recordings(harness::default_fixtures())) {
    const harness::Recording recording = harness::Recording::open(folder);
    harness::Replayer replayer(recording, *oracle, *oracle, {});
    for (const harness::Checkpoint& checkpoint : recording.checkpoints()) {
      const harness::CheckpointResult result = replayer.run(checkpoint);
      INFO(recording.name() << " " << checkpoint.id << ": " << result.reason);
      // A mask of a single query that sees everything is blind: right, and all zero.
      CHECK((result.status == harness::Status::pass || result.status == harness::Status::blind));
      CHECK((has_gate(result, "float64 agreement") || has_gate(result, "bits")));
      ++judged[checkpoint.block];
    }
  }
  CHECK(judged.size() == block_catalog().size());
}

TEST_CASE("an error of 1e-11 in float64 is seen") {
  const auto oracle = open_device("oracle");
  harness::testing::Hooks hooks;
  hooks.rms_norm = enlarged<&Ops::rms_norm>();
  hooks.layer_norm = enlarged<&Ops::layer_norm>();
  hooks.linear = enlarged<&Ops::linear>();
  hooks.activation = enlarged<&Ops::activation>();
  hooks.add = enlarged<&Ops::add>();
  hooks.add_scalar = enlarged<&Ops::add_scalar>();
  hooks.mul = enlarged<&Ops::mul>();
  hooks.div = enlarged<&Ops::div>();
  hooks.scale = enlarged<&Ops::scale>();
  hooks.softmax = enlarged<&Ops::softmax>();
  hooks.matmul = enlarged<&Ops::matmul>();
  hooks.masked_add = enlarged<&Ops::masked_add>();
  hooks.rotary = enlarged<&Ops::rotary>();
  hooks.rotary_table = enlarged<&Ops::rotary_table>();
  hooks.gated_activation = enlarged<&Ops::gated_activation>();
  hooks.softcap = enlarged<&Ops::softcap>();
  hooks.sdpa = enlarged<&Ops::sdpa>();
  hooks.causal_conv1d = enlarged<&Ops::causal_conv1d>();
  hooks.ssd_scan = enlarged<&Ops::ssd_scan>();
  hooks.gated_rms_norm = enlarged<&Ops::gated_rms_norm>();
  harness::testing::FaultyDevice wrong(*oracle, hooks);
  std::map<std::string, int> failed;
  for (const auto& folder : harness::find_recordings(harness::default_fixtures())) {
    const harness::Recording recording = harness::Recording::open(folder);
    if (recording.dtype() != DType::f32) continue;
    harness::Replayer replayer(recording, wrong, *oracle, {});
    for (const harness::Checkpoint& checkpoint : recording.checkpoints()) {
      if (failed[checkpoint.block] > 0) continue;  // one of each block is enough
      failed[checkpoint.block] += replayer.run(checkpoint).status == harness::Status::fail;
    }
  }
  for (const BlockEntry& entry : block_catalog()) {
    const bool computes = entry.bits != BitRule::exact && entry.name != "rotary_frequencies";
    INFO(entry.name);
    CHECK((failed[std::string(entry.name)] > 0) == computes);
  }
}

}  // namespace plumb::blocks::testing
