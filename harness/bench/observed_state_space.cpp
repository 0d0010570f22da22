// The ops of a state space: some channels, or a head, of one batch row, over all tokens.
#include <algorithm>

#include "harness/bench/observed_ops.h"

namespace plumb::harness {

void ObservedOps::causal_conv1d_op(const OpCall& call) {
  const Tensors t = call.tensors();
  // Some neighbouring channels, of one batch row.
  const int64_t channels = std::min(kColumns, t[0].dim(2));
  const auto some = [&](const Tensor& x, int channel_axis) {
    if (!x.defined()) return Tensor();
    const Tensor row = channel_axis > 0 ? x.slice(0, 0, 1) : x;
    return collected(inner_, row.slice(channel_axis, 0, channels));
  };
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {some(t[2], 2), some(t[3], 0), some(t[4], 0), some(t[5], 1)};
  forward(call);
  sampled.outputs = {some(t[0], 2)};
  if (t[1].defined()) sampled.outputs.push_back(some(t[1], 1));
  judge(sampled);
}

void ObservedOps::ssd_scan_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const auto& in = call.get<SsdInputs>();
  // The last head of one batch row.
  const int64_t head = in.x.dim(2) - 1, group = in.b.dim(2) - 1;
  const auto only = [&](const Tensor& x, int axis, int64_t index) {
    if (!x.defined()) return Tensor();
    const Tensor row = x.rank() > 1 ? x.slice(0, 0, 1) : x;
    return collected(inner_, row.slice(axis, index, index + 1));
  };
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {only(in.x, 2, head),       only(in.dt, 2, head),    only(in.b, 2, group),
                    only(in.c, 2, group),      only(in.a_log, 0, head), only(in.d, 0, head),
                    only(in.dt_bias, 0, head), only(in.state, 1, head)};
  forward(call);
  sampled.outputs = {only(t[0], 2, head)};
  if (t[1].defined()) sampled.outputs.push_back(only(t[1], 1, head));
  judge(sampled);
}

}  // namespace plumb::harness
