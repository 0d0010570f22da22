// A failure that is a known bug gets its name, in every family of roundings; any other gets none.
#include "harness/referee/known_bug.h"

#include <cmath>
#include <random>

#include "harness/recording/select.h"
#include "harness/referee/margins.h"
#include "harness/referee/mutants.h"
#include "harness/referee/oracle_runs.h"
#include "harness/replay/external.h"
#include "kernels/core/error.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

const Checkpoint& first_of(const Recording& recording, const std::string& block) {
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block == block) return c;
  }
  throw Error(recording.name() + " has no " + block);
}

using Outputs = std::map<std::string, Tensor>;

struct Subject {
  Subject(const std::string& recording_name, const std::string& block_name)
      : recording(Recording::open(default_fixtures() / recording_name)),
        checkpoint(first_of(recording, block_name)),
        block(*blocks::find_block(block_name)),
        oracle(open_device("oracle")),
        operands(read_operands(recording, checkpoint, recording.dtype())) {}

  // What the block computes from these, rounded after each operation, or once in the `fused` ones.
  Outputs run(const Checkpoint& of, const HostOperands& from, OpSet fused) {
    OracleRuns runs(recording, of, block, from, *oracle);
    Outputs out;
    for (const auto& [name, ref] : of.outputs) out[name] = runs.rounded(name, fused);
    return out;
  }

  CheckpointResult judged(const Outputs& outputs) {
    CheckpointResult result = external_result(recording, checkpoint);
    judge_external(recording, checkpoint, outputs, {RoundingPoints::eager, false}, *oracle, result);
    return result;
  }

  Recording recording;
  const Checkpoint& checkpoint;
  const blocks::BlockEntry& block;
  std::unique_ptr<Device> oracle;
  HostOperands operands;
};

Tensor changed(const Tensor& t, const std::function<double(int64_t, double)>& change) {
  const Tensor out = host_tensor(t.dtype(), t.shape());
  for (int64_t i = 0; i < t.numel(); ++i) {
    const int64_t at = i * size_of(t.dtype());
    store(t.dtype(), out.data<char>() + at, change(i, load(t.dtype(), t.data<char>() + at)));
  }
  return out;
}

TEST_CASE("every known bug that fails is named, however it rounds") {
  int named = 0;
  for (const auto& [recording, blocks] : std::map<std::string, std::vector<std::string>>{
           {"gemma2-a4/whole-f32", {"rms_norm", "sdpa", "rotary", "softcap", "causal_mask"}},
           {"gemma2-a4/decode-bf16", {"rms_norm", "sdpa", "rotary", "softcap", "glu_mlp"}},
           {"llama-a1/decode-bf16", {"rms_norm", "linear", "glu_activation", "decoder_layer"}},
           {"zamba2-a8/decode-f32", {"causal_conv1d", "ssd_scan", "gated_rms_norm"}}}) {
    for (const std::string& block : blocks) {
      Subject subject(recording, block);
      for (const Mutant& mutant :
           mutants_of(subject.recording, subject.checkpoint, subject.operands)) {
        if (mutant.store) continue;
        for (const OpSet& fused : {OpSet(), OpSet().set()}) {
          const CheckpointResult result =
              subject.judged(subject.run(mutant.checkpoint, mutant.operands, fused));
          INFO(recording << ' ' << block << ": " << mutant.bug << ": " << result.reason);
          if (result.status != Status::fail || largest_ratio(result.outputs[0]) < 4) continue;
          if (mutant.bug == "norm weight on the other side of the cast") {
            CHECK_FALSE(result.known_bug);  // a rounding, and reported as one
            CHECK(result.diagnosis.find("rounds ") == 0);
            continue;
          }
          REQUIRE(result.known_bug);
          CHECK(result.known_bug->bug == mutant.bug);
          CHECK(result.reason.find(words_of(*result.known_bug)) != std::string::npos);
          ++named;
        }
      }
    }
  }
  CHECK(named > 40);
}

TEST_CASE("what is broken in another way gets no name") {
  for (const auto& [recording, block] :
       std::vector<std::pair<std::string, std::string>>{{"gemma2-a4/whole-f32", "sdpa"},
                                                        {"gemma2-a4/decode-bf16", "sdpa"},
                                                        {"gemma2-a4/decode-bf16", "softcap"},
                                                        {"llama-a1/decode-bf16", "rms_norm"},
                                                        {"llama-a1/whole-f32", "rms_norm"},
                                                        {"llama-a1/whole-f32", "decoder_layer"},
                                                        {"llama-a1/whole-f32", "linear"}}) {
    Subject subject(recording, block);
    const Outputs right = subject.run(subject.checkpoint, subject.operands, OpSet());
    std::mt19937 random(1);
    std::normal_distribution<double> noise;
    const std::map<std::string, std::function<double(int64_t, double)>> kinds = {
        {"noise", [&](int64_t, double x) { return x * (1 + 0.05 * noise(random)); }},
        {"too large", [](int64_t, double x) { return 1.03 * x; }},
        {"one element", [](int64_t i, double x) { return i == 5 ? x + 1 : x; }},
        {"the first row zero", [](int64_t i, double x) { return i < 8 ? 0 : x; }},
        {"NaN", [](int64_t i, double x) { return i == 3 ? NAN : x; }},
        {"zero", [](int64_t, double) { return 0; }}};
    for (const auto& [name, change] : kinds) {
      Outputs wrong = right;
      for (auto& [output, y] : wrong) y = changed(y, change);
      const CheckpointResult result = subject.judged(wrong);
      INFO(recording << ' ' << block << ": " << name << ": " << result.reason);
      CHECK(result.status == Status::fail);
      CHECK_FALSE(result.known_bug);
    }
  }
}

TEST_CASE("tables of another theta are planted wherever the recording says what made them") {
  for (const char* block : {"rotary", "attention", "decoder_layer"}) {
    Subject subject("gemma2-a4/whole-f32", block);
    const std::vector<Mutant> all =
        mutants_of(subject.recording, subject.checkpoint, subject.operands);
    const auto theta = std::find_if(all.begin(), all.end(), [](const Mutant& it) {
      return it.bug == "theta 1 percent too large";
    });
    INFO(block);
    REQUIRE(theta != all.end());
    const Tensor &right = subject.operands.inputs.at("cos"),
                 &wrong = theta->operands.inputs.at("cos");
    double largest = 0;
    for (int64_t i = 0; i < right.numel(); ++i) {
      const double off = wrong.data<float>()[i] - right.data<float>()[i];
      largest = std::max(largest, std::fabs(off));
    }
    CHECK(largest > 1e-3);
    CHECK(largest < 0.2);
    CHECK(right.data<float>()[0] == wrong.data<float>()[0]);  // frequency 0 is 1 for any theta
  }
}

TEST_CASE("two bugs at once are neither of them") {
  Subject subject("gemma2-a4/whole-f32", "sdpa");
  const std::vector<Mutant> all =
      mutants_of(subject.recording, subject.checkpoint, subject.operands);
  REQUIRE(all.size() > 1);
  Mutant both = all.front();
  for (const Mutant& second : mutants_of(subject.recording, both.checkpoint, both.operands)) {
    if (second.bug == both.bug || second.store) continue;
    const CheckpointResult result =
        subject.judged(subject.run(second.checkpoint, second.operands, OpSet()));
    INFO(both.bug << " and " << second.bug << ": " << result.reason);
    CHECK(result.status == Status::fail);
    CHECK_FALSE(result.known_bug);
  }
}

TEST_CASE("a known bug in words") {
  CHECK(words_of({"softcap left out", 0.0001, 0.2, ""}) ==
        "equals the block with a known bug, softcap left out: 0.01 % of bits differ");
  CHECK(words_of({"softcap left out", std::nan(""), 0.4, ""}) ==
        "equals the block with a known bug, softcap left out: error 0.4 of its limit");
}

}  // namespace
}  // namespace plumb::harness
