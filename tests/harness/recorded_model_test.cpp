// Two derivations of a contract's rounded model: the trace of transformers' own run, as recorded,
// and our blocks on the oracle device. They share no line of code and must agree.
#include <algorithm>
#include <iostream>

#include "harness/judge/conformance.h"
#include "harness/judge/spread_limit.h"
#include "harness/recording/layout.h"
#include "harness/referee/cases.h"
#include "harness/referee/oracle_runs.h"
#include "kernels/core/error.h"
#include "tests/catch.h"

namespace plumb::harness {
namespace {

struct Agreement {
  int64_t outputs = 0, elements = 0, differ = 0;
};

bool rounds_alike(const Recording& recording, const Checkpoint& checkpoint) {
  const blocks::BlockEntry* block = blocks::find_block(checkpoint.block);
  const bool determined =
      block && block->bits != blocks::BitRule::exact && block->bits != blocks::BitRule::none;
  return determined &&
         recording.contracts().at(checkpoint.contract).points == RoundingPoints::eager;
}

int64_t count_different(const OutputCase& output, const Tensor& a, const Tensor& b) {
  const Layout layout = layout_of(a.shape(), output.evidence.axes);
  const std::vector<double> left = to_matrix(a, layout), right = to_matrix(b, layout);
  const std::vector<uint8_t> valid =
      to_mask(output.evidence.valid, output.evidence.valid_axes, layout);
  int64_t out = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const bool same = left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i]));
    out += valid[i] && !same;
  }
  return out;
}

// What simulated correct kernels of the recorded run show, or eight elements.
double allowed(const OutputRef& ref) {
  const SpreadOf* bits = ref.spread ? ref.spread->find("bits") : nullptr;
  return std::max(bits ? bits_limit(*bits) : 0, kLimits.conformance_count);
}

}  // namespace

TEST_CASE("the trace's rounded model and ours agree on every recorded checkpoint", "[model]") {
  const auto oracle = open_device("oracle");
  std::map<std::string, Agreement> by_block;
  for (const auto& folder : find_recordings("fixtures")) {
    const Recording recording = Recording::open(folder);
    for (const Checkpoint& checkpoint : recording.checkpoints()) {
      if (!rounds_alike(recording, checkpoint)) continue;
      const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
      std::optional<HostOperands> operands;
      for (const auto& [name, ref] : checkpoint.outputs) {
        if (!ref.model) continue;
        if (!operands) operands = read_operands(recording, checkpoint, recording.dtype());
        OracleRuns runs(recording, checkpoint, block, *operands, *oracle);
        if (!runs.possible(name)) continue;
        const OutputCase output = recorded_case(recording, checkpoint, name);
        const std::optional<Tensor> traced = recorded_model(recording, checkpoint, output);
        const Tensor ours = runs.rounded(name, OpSet());
        INFO(recording.name() << ' ' << checkpoint.id << ' ' << name);
        REQUIRE(traced);
        const int64_t differ = count_different(output, *traced, ours);
        CHECK(static_cast<double>(differ) <= allowed(ref));
        Agreement& agreement = by_block[checkpoint.block];
        ++agreement.outputs;
        agreement.elements += ours.numel();
        agreement.differ += differ;
      }
    }
  }
  CHECK(by_block.size() >= 10);
  for (const auto& [block, agreement] : by_block) {
    WARN(block << ": " << agreement.outputs << " outputs, " << agreement.differ << " of "
               << agreement.elements << " elements differ");
  }
}

}  // namespace plumb::harness
