// The rows of a chain before the model runs: what the recording states and the isolated runs give.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "harness/judge/chain_figures.h"
#include "harness/replay/replay.h"

namespace plumb::harness {

struct ChainRows {
  std::vector<ChainRow> rows;                  // in the order in which they ran
  std::vector<const Checkpoint*> checkpoints;  // of every row
  double head_floor = 0;                       // F of final norm and head, in quadrature
  // The first rotary table that is wrong alone. All layers share it, and none has it as a row.
  std::optional<CheckpointResult> wrong_table;
};

// How many times the reference's error (that of one rounding, where it is less) simulated kernels
// introduce in an output, if its contract allows something inside; else 1.
double introduced_inside(const Checkpoint& checkpoint, const OutputRef& output, DType storage);

// Says in the chain's result what its recording allows inside.
void note_inside(const Recording& recording, CheckpointResult& result);

// The results of these checkpoints alone, in their order.
using RunAlone =
    std::function<std::vector<CheckpointResult>(const std::vector<const Checkpoint*>& checkpoints)>;

// One after the other.
RunAlone run_in_turn(const Recording& recording, Device& device, Device& oracle,
                     const ReplayOptions& options);

// Runs every chained checkpoint alone, and rotary tables; `result` takes what that says of contract
// and implementations. Throws what kept one from being judged.
ChainRows chain_rows(const Recording& recording, const RunAlone& run_alone,
                     CheckpointResult& result);

// For a program whose run was not watched: as for a device that adds the errors the reference adds,
// which needs no device. Blocks that cannot be judged here have the floor of one rounding.
ChainRows reference_rows(const Recording& recording, Device& oracle);

}  // namespace plumb::harness
