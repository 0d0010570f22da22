#include "harness/bench/sample.h"

#include <algorithm>
#include <cstring>

#include "harness/judge/conformance.h"
#include "harness/referee/cases.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::vector<std::string> axes_of(const Tensor& t) {
  switch (t.rank()) {
    case 2: return {"token", "channel"};
    case 3: return {"batch", "token", "channel"};
    default: return {"batch", "head", "token", "channel"};
  }
}

Tensor placed(Device& device, const Tensor& host) {
  if (!host.defined()) return {};
  const Tensor out = device.allocate(host.dtype(), host.shape());
  device.upload(out, host.raw());
  return out;
}

// The op on the oracle: in float64, or rounded where the device rounds.
std::vector<Tensor> on_oracle(const SampledOp& sampled, Device& oracle, bool in_float64,
                              OpSet fused) {
  const auto dtype_of = [&](const Tensor& t) {
    return in_float64 && is_floating(t.dtype()) ? DType::f64 : t.dtype();
  };
  const auto widened = [&](const Tensor& t) { return t.defined() ? converted(t, dtype_of(t)) : t; };
  std::vector<Tensor> inputs, outputs, out;
  for (const Tensor& t : sampled.inputs) inputs.push_back(placed(oracle, widened(t)));
  for (const Tensor& t : sampled.outputs) {
    outputs.push_back(oracle.allocate(dtype_of(t), t.shape()));
  }
  oracle.ops().set_fused(fused);
  sampled.run(oracle.ops(), outputs, inputs);
  for (const Tensor& t : outputs) {
    out.push_back(host_tensor(t.dtype(), t.shape()));
    oracle.download(out.back().raw(), t);
  }
  return out;
}

// Part by part: Ops::copy() of a GPU is for storage dtypes.
void download_parts(Device& device, char* to, const Tensor& view, int axis = 0) {
  if (view.contiguous()) return device.download(to, view);
  for (int64_t i = 0; i < view.dim(axis); ++i) {
    const Tensor part = view.slice(axis, i, i + 1);
    download_parts(device, to + i * part.bytes(), part, axis + 1);
  }
}

}  // namespace

Picks picks(int64_t extent, int64_t most) {
  const int64_t count = std::min(extent, most);
  if (count < 2) return {extent - count, 1, count};
  int64_t step = (extent - 1) / (count - 1);
  if (step > 1 && step % 2 == 0) --step;  // odd: every place of a power-of-two tile is met
  return {extent - 1 - (count - 1) * step, step, count};
}

Tensor picked(const Tensor& t, int axis, const Picks& at) {
  return t.dim(axis) == 1 || at.count == 0 ? t : t.every(axis, at.first, at.step);
}

Tensor picked_columns(const Tensor& host, const Picks& at) {
  if (!host.defined()) return {};
  Shape shape = host.shape();
  shape.set(-1, at.count);
  const Tensor out = host_tensor(host.dtype(), shape);
  const int64_t size = size_of(host.dtype());
  int64_t to = 0;
  for_each_row(host, [&](int64_t row) {
    for (int64_t i = 0; i < at.count; ++i, ++to) {
      std::memcpy(out.data<char>() + to * size, host.data<char>() + (row + at[i]) * size,
                  static_cast<size_t>(size));
    }
  });
  return out;
}

Tensor gather(Ops& ops, const Tensor& view) {
  if (!view.defined()) return {};
  Tensor dense = view;
  if (!view.contiguous() && is_floating(view.dtype())) {
    dense = ops.device().allocate(view.dtype(), view.shape());
    ops.copy(dense, view);
  }
  const Tensor out = host_tensor(view.dtype(), view.shape());
  download_parts(ops.device(), out.data<char>(), dense);
  return out;
}

OpRun again(const OpCall& call) {
  return [call](Ops& ops, const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) {
    call.with(outputs, inputs).on(ops);
  };
}

OutputVerdict judge_sample(const SampledOp& sampled, const std::vector<OpRecord>& records,
                           Device& oracle) {
  const DType made = sampled.outputs[0].dtype();
  const DType storage = is_floating(made) ? made : DType::f32;
  const RunFacts facts = facts_of(records, storage);
  const bool exact = sampled.bits == blocks::BitRule::exact;
  std::vector<Tensor> model;
  if (!exact) model = on_oracle(sampled, oracle, false, facts.single_rounding);
  const std::vector<Tensor> float64 = on_oracle(sampled, oracle, !exact, OpSet().set());
  std::vector<OutputVerdict> verdicts;
  for (size_t i = 0; i < sampled.outputs.size(); ++i) {
    OutputCase output;
    output.name = text("output ", i);
    output.y = sampled.outputs[i];
    output.axes = sampled.axes.empty() ? axes_of(output.y) : sampled.axes;
    output.oracle = float64[i];
    if (!exact) output.model = model[i];
    output.held_to_model = !exact;
    output.contract = facts.contract;
    output.contract.storage = is_floating(output.y.dtype()) ? output.y.dtype() : storage;
    output.stages = facts.stages;
    output.exact = exact;
    output.max_abs_score = sampled.max_abs_score;
    output.conformance = size_of(output.contract.storage) == 2 && facts.single_rounding.none();
    if (sampled.bits == blocks::BitRule::scaled) {
      const bool fused_sum = sampled.outputs.size() > 1;
      output.cascade_outputs = alike_in_row(fused_sum ? sampled.outputs[0] : sampled.inputs[0]);
    }
    verdicts.push_back(judge(output));
  }
  return *std::max_element(verdicts.begin(), verdicts.end(),
                           [](const OutputVerdict& a, const OutputVerdict& b) {
                             return worse(a.status, b.status) == b.status && a.status != b.status;
                           });
}

}  // namespace plumb::harness
