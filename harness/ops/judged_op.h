// The verdict on one call of an op: the float64 oracle and the rounded model are computed on its
// operands, limits come from what the device promises.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/judge/verdict.h"
#include "kernels/core/device.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {

// The same call of other outputs and inputs.
using OpRun = std::function<void(Ops&, const std::vector<Tensor>& outputs,
                                 const std::vector<Tensor>& inputs)>;
OpRun again(const OpCall& call);

// What to run on the oracle, on what, and what the device made of it. All tensors are dense and on
// the host.
struct JudgedOp {
  OpId op;
  std::vector<Tensor> outputs = {}, inputs = {};  // the last outputs may be missing
  OpRun run = {};
};

// Of each output. `records`: of the device's call.
std::vector<OutputVerdict> judge_op(const JudgedOp& judged, const std::vector<OpRecord>& records,
                                    Device& oracle);

}  // namespace plumb::harness
