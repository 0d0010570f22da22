// The culprit of a chain: shadow runs, and the way down into the parts of a layer.
#pragma once

#include <string>
#include <vector>

#include "harness/chain/chain_replay.h"
#include "harness/judge/chain_figures.h"
#include "harness/replay/replay.h"

namespace plumb::harness {

// What a descent works with. Everything must outlive it.
struct ChainRun {
  const Recording& recording;
  Device& device;
  Device& oracle;
  const ReplayOptions& options;
  DType dtype;
  const ChainReplay& replay;
  const std::vector<std::vector<Seen>>& seen;    // of the chained outputs, by step
  const std::vector<const Checkpoint*>& of_row;  // the checkpoint of every row
};

// Sets shadow and shadow_limit of a row whose output is "out": E(y - F(x)), F being the float64
// block as the recording states it and x what the device itself had for inputs and states, against
// the limit of the isolated run. Nothing where shapes differ from the recorded ones.
void shadow(const ChainRun& run, std::vector<ChainRow>& rows, size_t row);

// The error of the float64 block rounded after every operation, as eager code rounds, on the same
// inputs: what a right program may introduce in 16 bits, whatever the recorded run rounded. NaN
// where the block cannot be run.
double eager_error(const ChainRun& run, const std::vector<ChainRow>& rows, size_t row);

struct Culprit {
  std::string name;                // id of a checkpoint, or path of a part
  std::string block;               // its block, or that of the layer it is a part of
  std::vector<std::string> words;  // one line each
};

// A checkpoint that is wrong on recorded inputs.
Culprit wrong_alone(const CheckpointResult& result);
// A row that is wrong alone: the first checkpoint inside it that is, in the order of execution.
Culprit wrong_part(const ChainRun& run, const std::vector<ChainRow>& rows, size_t row);
// A row that is wrong in the chain only: the first of its parts that is farther from the float64
// block than the rounded one allows, both on the chain's own inputs.
Culprit wrong_edge(const ChainRun& run, const std::vector<ChainRow>& rows, size_t row);

// Of a chain that fails though every part is within its own limits: a state that is off alone, or
// the block that introduces more in the chain than on recorded inputs. Without a name, and the
// reason in words, where there is neither.
Culprit suspect(const std::vector<ChainRow>& rows);

}  // namespace plumb::harness
