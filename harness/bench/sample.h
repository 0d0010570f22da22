// Samples: few elements of large tensors, enough to tell a wrong kernel, and the verdict on them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "blocks/catalog.h"
#include "harness/judge/verdict.h"
#include "kernels/core/device.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {

// Indices first, first + step, ... of an axis, spread over it; the last index is always one.
struct Picks {
  int64_t first = 0, step = 1, count = 0;
  int64_t operator[](int64_t i) const { return first + i * step; }
};
Picks picks(int64_t extent, int64_t most);

// The picked elements along an axis (any but the last); an axis of extent 1 stays.
Tensor picked(const Tensor& t, int axis, const Picks& at);
// The picked elements along the last axis of a host tensor.
Tensor picked_columns(const Tensor& host, const Picks& at);

// A device tensor or view as a contiguous host tensor; undefined stays undefined.
Tensor gather(Ops& ops, const Tensor& view);

// The same call of other outputs and inputs.
using OpRun = std::function<void(Ops&, const std::vector<Tensor>& outputs,
                                 const std::vector<Tensor>& inputs)>;
OpRun again(const OpCall& call);

// An op on a few elements: what to run on the oracle, on what, and what the device made of it. All
// tensors are on the host.
struct SampledOp {
  std::vector<Tensor> outputs, inputs;
  OpRun run;
  // Copies and masks are exact; a norm scales the rows of its first input, or of the first of two
  // outputs.
  blocks::BitRule bits = blocks::BitRule::leaf;
  double max_abs_score = 0;            // attention only
  std::vector<std::string> axes = {};  // of the outputs; empty: [batch, [head,]] token, channel
};

// The verdict by the rules of verification: the float64 oracle and the rounded model are computed
// here, limits come from what the device's `records` of the call promise.
OutputVerdict judge_sample(const SampledOp& sampled, const std::vector<OpRecord>& records,
                           Device& oracle);

}  // namespace plumb::harness
