// Relations between calls of one op, which need no oracle: a row of a call has the same bits, or is
// within limits, whatever the other rows are.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/ops/op_suite.h"
#include "kernels/core/device.h"

namespace plumb::harness {

// Tries all of a case whose `outputs` are right; other bits, where their kernels' contracts promise
// none (Contract::row_bits) and `demand` does not either, are judged by the limits of their calls.
// Writes to the result what came of it.
void try_relations(const OpCase& op, const std::vector<Tensor>& outputs, Device& device,
                   Device& oracle, RowDemand demand, RelationTally& tally,
                   CheckpointResult& result);

}  // namespace plumb::harness
