// Chosen rows computed alone are the rows of the whole block, bit for bit.
#include "harness/referee/oracle_runs.h"

#include <set>

#include "harness/recording/sampled.h"
#include "harness/recording/select.h"
#include "harness/trace/recorded_case.h"
#include "kernels/core/error.h"
#include "tests/harness/error_text.h"
#include "tests/harness/judge_support.h"

namespace plumb::harness::testing {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::equal(a.data<char>(), a.data<char>() + a.bytes(), b.data<char>());
}

// Small enough to run whole.
constexpr int64_t kMostElements = 300'000;

}  // namespace

TEST_CASE("oracle runs: chosen rows alone equal the rows of the whole") {
  const auto oracle = open_device("oracle");
  std::set<std::string> compared, impossible;
  for (const auto& folder : find_recordings(default_fixtures())) {
    const Recording recording = Recording::open(folder);
    for (const Checkpoint& checkpoint : recording.checkpoints()) {
      if (compared.count(checkpoint.block) > 0 && checkpoint.block != "sdpa") continue;
      for (const auto& [name, ref] : checkpoint.outputs) {
        if (!ref.sampled || recording.output_shape(ref).numel() > kMostElements) continue;
        const HostOperands operands = read_operands(recording, checkpoint, recording.dtype());
        const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
        OracleRuns runs(recording, checkpoint, block, operands, *oracle);
        INFO(recording.name() << " " << checkpoint.id << " " << name);
        if (!runs.possible(name)) {
          impossible.insert(checkpoint.block);
          CHECK(contains(error_text<Unsupported>([&] { runs.float64(name); }),
                         checkpoint.block + " needs all of them"));
          continue;
        }
        const Tensor whole =
            execute(block, checkpoint, operands, *oracle, {OpSet(), 0xff}).outputs.at(name);
        const auto tokens = chosen_tokens(recording, checkpoint, name);
        CHECK(same_bytes(runs.rounded(name, OpSet()),
                         take_rows(whole, token_axis(ref.axes), tokens)));
        compared.insert(checkpoint.block);
      }
    }
  }
  CHECK(compared.count("sdpa") + compared.count("rms_norm") + compared.count("linear") == 3);
  CHECK(compared.count("rotary") + compared.count("glu_mlp") + compared.count("embedding") == 3);
  CHECK(impossible.count("attention") == 1);
}

}  // namespace plumb::harness::testing
