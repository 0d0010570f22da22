// The ops of a state space: some channels, or a head, of one batch row, over all tokens.
#include <algorithm>

#include "harness/bench/observed_ops.h"

namespace plumb {

void ObservedOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                   const Tensor& weight, const Tensor& bias,
                                   const Tensor& state_before, std::optional<Activation> function) {
  // Some neighbouring channels, of one batch row.
  const int64_t channels = std::min(kColumns, x.dim(2));
  const auto of_rows = [&](const Tensor& t) {
    return gather(inner_, t.slice(0, 0, 1).slice(2, 0, channels));
  };
  const auto of_states = [&](const Tensor& t) {
    return t.defined() ? gather(inner_, t.slice(0, 0, 1).slice(1, 0, channels)) : Tensor();
  };
  SampledOp sampled;
  sampled.inputs = {of_rows(x), gather(inner_, weight.slice(0, 0, channels)),
                    bias.defined() ? gather(inner_, bias.slice(0, 0, channels)) : Tensor(),
                    of_states(state_before)};
  forward(cost_of(OpId::causal_conv1d, {out, state_after}, {x, weight, bias, state_before}),
          [&](Ops& ops) {
            ops.causal_conv1d(out, state_after, x, weight, bias, state_before, function);
          });
  sampled.outputs = {of_rows(out)};
  if (state_after.defined()) sampled.outputs.push_back(of_states(state_after));
  sampled.run = [function](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.causal_conv1d(y[0], y.size() > 1 ? y[1] : Tensor(), a[0], a[1], a[2], a[3], function);
  };
  judge(sampled);
}

void ObservedOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                              const SsdParams& params) {
  // The last head of one batch row.
  const int64_t head = in.x.dim(2) - 1, group = in.b.dim(2) - 1;
  const auto only = [&](const Tensor& t, int axis, int64_t index) {
    if (!t.defined()) return Tensor();
    const Tensor row = t.rank() > 1 ? t.slice(0, 0, 1) : t;
    return gather(inner_, row.slice(axis, index, index + 1));
  };
  SampledOp sampled;
  sampled.inputs = {only(in.x, 2, head),       only(in.dt, 2, head),    only(in.b, 2, group),
                    only(in.c, 2, group),      only(in.a_log, 0, head), only(in.d, 0, head),
                    only(in.dt_bias, 0, head), only(in.state, 1, head)};
  forward(cost_of(OpId::ssd_scan, {y, state_after},
                  {in.x, in.dt, in.b, in.c, in.a_log, in.d, in.dt_bias, in.state}),
          [&](Ops& ops) { ops.ssd_scan(y, state_after, in, params); });
  sampled.outputs = {only(y, 2, head)};
  sampled.axes = {"batch", "token", "head", "channel"};
  if (state_after.defined()) sampled.outputs.push_back(only(state_after, 1, head));
  sampled.run = [params](Ops& ops, const Tensors& outputs, const Tensors& a) {
    ops.ssd_scan(outputs[0], outputs.size() > 1 ? outputs[1] : Tensor(),
                 {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]}, params);
  };
  judge(sampled);
}

void ObservedOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                    const Tensor& weight, const GatedRmsNormParams& params) {
  row_op(OpId::gated_rms_norm, {out}, {x, gate, weight},
         [params](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.gated_rms_norm(y[0], a[0], a[1], a[2], params);
         });
}

}  // namespace plumb
