// Margins: how far known bugs are from passing a checkpoint's gates.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/referee/cases.h"
#include "harness/referee/oracle_runs.h"
#include "harness/result/result.h"

namespace plumb::harness {

// How the models of outputs are rounded that follow other roundings than their ops say, by name.
using FollowedWays = std::map<std::string, RoundingWay>;

// For each of mutants.h the float64 block with the bug, rounded where the contract rounds, judged
// in the device's place: the largest statistic / limit over all gates and outputs. Up to 1 the bug
// passes: the checkpoint is blind to it. `cases`: of the run that was judged, whose limits they
// are. Bugs that the block refuses to compute are left out, and so is everything where outputs have
// rows that cannot be computed alone.
std::vector<Margin> margins_of(const Recording& recording, const Checkpoint& checkpoint,
                               const blocks::BlockEntry& block, const HostOperands& operands,
                               const RunFacts& facts, const std::vector<OutputCase>& cases,
                               Device& oracle, const FollowedWays& followed = {});

// The largest statistic / limit over an output's gates.
double largest_ratio(const OutputVerdict& verdict);

// A feature whose known bug passes (feature_behind() of harness/referee/mutants.h) is one that the
// checkpoint cannot see, and one whose bug fails is seen, whatever its data promise.
void note_blindness(CheckpointResult& result);

}  // namespace plumb::harness
