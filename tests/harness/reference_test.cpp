// Transformers' own outputs, judged like any program's: a judge that fails them is wrong.
#include "harness/foreign.h"
#include "harness/select.h"
#include "tests/catch.h"

using namespace plumb;

TEST_CASE("reference: what transformers computed passes in every recording") {
  const auto oracle = open_device("oracle");
  int64_t judged = 0;
  for (const auto& folder : find_recordings(default_fixtures())) {
    const Recording recording = Recording::open(folder);
    for (const Checkpoint& checkpoint : recording.checkpoints()) {
      std::map<std::string, Tensor> outputs;
      for (const auto& [name, ref] : checkpoint.outputs) outputs[name] = recording.read(ref.tensor);
      const RoundingPoints points = recording.contracts().at(checkpoint.contract).points;
      const CheckpointResult result =
          judge_foreign(recording, checkpoint, outputs, points, *oracle);
      INFO(recording.name() << " " << checkpoint.id << ": " << result.reason);
      CHECK((result.status == Status::pass || result.status == Status::blind));
      ++judged;
    }
  }
  CHECK(judged > 0);
}
