// Which bits a run is held to: those that its ops promise, wherever they come from.
#include <algorithm>
#include <set>

#include "harness/referee/cases.h"
#include "harness/referee/oracle_runs.h"
#include "kernels/core/error.h"
#include "kernels/oracle/arithmetic.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

const Recording& recording() {
  static const Recording opened = Recording::open("fixtures/llama-a1/decode-bf16");
  return opened;
}

const Checkpoint& first_of(const std::string& block) {
  for (const Checkpoint& checkpoint : recording().checkpoints()) {
    if (checkpoint.block == block) return checkpoint;
  }
  throw UsageError("no checkpoint of " + block);
}

RunFacts facts_with(OpId op, RoundingPoints points) {
  return facts_of({{op, {DType::bf16, DType::bf16, {}, points}, {}, {}}}, DType::bf16);
}

bool needs_other_bits_with(OpId op, RoundingPoints points) {
  const Checkpoint& checkpoint = first_of(std::string(name_of(op)));
  const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
  return needs_other_bits(recording(), checkpoint, block, facts_with(op, points));
}

// Of the reference's outputs, by the recording alone.
std::vector<OutputCase> unrefereed(const Checkpoint& checkpoint, const RunFacts& facts) {
  const auto oracle = open_device("oracle");
  const HostOperands operands = read_operands(recording(), checkpoint, DType::bf16);
  std::map<std::string, Tensor> outputs;
  for (const auto& [name, ref] : checkpoint.outputs) outputs[name] = recording().read(ref.tensor);
  return output_cases(recording(), checkpoint, *blocks::find_block(checkpoint.block), operands,
                      outputs, facts, *oracle, false);
}

}  // namespace

TEST_CASE("promised rounding: a product is held to the recorded bits, whatever it promises") {
  for (const RoundingPoints points : {RoundingPoints::eager, RoundingPoints::fused}) {
    const auto cases = unrefereed(first_of("linear"), facts_with(OpId::linear, points));
    REQUIRE(cases.size() == 1);
    CHECK(cases[0].rule.conformance);
    CHECK(cases[0].evidence.model.defined());
    CHECK_FALSE(cases[0].rule.held_to_model);
  }
}

TEST_CASE("promised rounding: what rounds at its output alone has bits that no recording has") {
  CHECK(needs_other_bits_with(OpId::rms_norm, RoundingPoints::fused));
  CHECK(needs_other_bits_with(OpId::rotary, RoundingPoints::fused));
  CHECK_FALSE(needs_other_bits_with(OpId::rms_norm, RoundingPoints::eager));
  CHECK_FALSE(needs_other_bits_with(OpId::linear, RoundingPoints::fused));
  CHECK_FALSE(needs_other_bits_with(OpId::sdpa, RoundingPoints::fused));  // judged by its errors
}

TEST_CASE("promised rounding: every op whose oracle rounds inside is known to") {
  const auto oracle = open_device("oracle");
  std::set<std::string> seen, found;
  for (const char* folder : {"fixtures/llama-a1/decode-bf16", "fixtures/zamba2-a6/decode-bf16"}) {
    const Recording opened = Recording::open(folder);
    for (const Checkpoint& checkpoint : opened.checkpoints()) {
      int index = 0;
      while (index < kOpCount && name_of(static_cast<OpId>(index)) != checkpoint.block) ++index;
      const auto op = static_cast<OpId>(index);
      if (index == kOpCount || is_fused(op) || !seen.insert(checkpoint.block).second) continue;
      const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
      const HostOperands operands = read_operands(opened, checkpoint, DType::bf16);
      OracleRuns runs(opened, checkpoint, block, operands, *oracle);
      Arithmetic arithmetic;
      runs.with(checkpoint.outputs.begin()->first, OpSet(), arithmetic);
      const std::string prefix = checkpoint.block + '.';
      const bool inside = std::any_of(
          arithmetic.points.begin(), arithmetic.points.end(), [&](const RoundingPoint& point) {
            return point.eager && point.name.starts_with(prefix) &&
                   !checkpoint.outputs.contains(point.name.substr(prefix.size()));
          });
      if (!inside) continue;
      INFO(checkpoint.block);
      CHECK(facts_with(op, RoundingPoints::fused).unrounded_inside.any());
      found.insert(checkpoint.block);
    }
  }
  // Not gated_rms_norm: Zamba2's takes a scan's float32, and rounds at its output alone.
  CHECK(found == std::set<std::string>{"causal_conv1d", "rms_norm", "rotary", "ssd_scan"});
  CHECK(seen.size() > 8);
}

}  // namespace plumb::harness
