#include "harness/ops/judged_op.h"

#include <algorithm>

#include "harness/execution/converted.h"
#include "harness/judge/conformance.h"
#include "harness/ops/float64_op.h"
#include "harness/referee/cases.h"
#include "kernels/core/error.h"
#include "kernels/oracle/arithmetic.h"

namespace plumb::harness {
namespace {

// By what the letters of most ops mean.
std::vector<std::string> axes_of(const Operand& operand, int rank) {
  const bool tokens_first = operand.letters.starts_with("[B,T,H");
  switch (rank) {
    case 1: return {"channel"};
    case 2: return {"token", "channel"};
    case 3: return {"batch", "token", "channel"};
    default: break;
  }
  if (tokens_first) return {"batch", "token", "head", "channel"};
  return {"batch", "head", "token", "channel"};
}

Tensor placed(Device& device, const Tensor& host) {
  if (!host.defined()) return {};
  const Tensor out = device.allocate(host.dtype(), host.shape());
  device.upload(out, host.raw());
  return out;
}

// The op on the oracle: in float64, or rounded where the device rounds.
std::vector<Tensor> on_oracle(const JudgedOp& judged, Device& oracle, bool in_float64, OpSet fused,
                              Arithmetic& arithmetic) {
  const auto dtype_of = [&](const Tensor& t) {
    return in_float64 && is_floating(t.dtype()) ? DType::f64 : t.dtype();
  };
  std::vector<Tensor> inputs, outputs, out;
  for (const Tensor& t : judged.inputs) {
    inputs.push_back(placed(oracle, t.defined() ? converted(t, dtype_of(t)) : t));
  }
  for (const Tensor& t : judged.outputs) {
    outputs.push_back(t.defined() ? oracle.allocate(dtype_of(t), t.shape()) : t);
  }
  oracle.ops().set_fused(fused);
  const ArithmeticScope scope(arithmetic);
  judged.run(oracle.ops(), outputs, inputs);
  for (const Tensor& t : outputs) {
    out.push_back(t.defined() ? host_tensor(t.dtype(), t.shape()) : t);
    if (t.defined()) oracle.download(out.back().raw(), t);
  }
  return out;
}

// Simulated kernels that are as right as float32 arithmetic is.
std::vector<Tensor> simulated(const JudgedOp& judged, size_t output, Device& oracle, OpSet fused,
                              int count) {
  std::vector<Tensor> out;
  for (int seed = 1; seed <= count; ++seed) {
    Arithmetic noisy{.noise = static_cast<uint64_t>(seed)};
    out.push_back(on_oracle(judged, oracle, false, fused, noisy)[output]);
  }
  return out;
}

// Whose last axis is scaled as a whole: where no letter says that it is a row, a batch row.
Tensor scaled_rows(const OpRow& row, const Tensor& t) {
  const bool has_rows = row.operands.operands.at(0).rank > 0;
  return has_rows || t.numel() == 0 ? t : t.view({t.dim(0), t.numel() / t.dim(0)});
}

void hold_in_float64(const JudgedOp& judged, size_t output, const Tensor& o,
                     const std::vector<OpRecord>& records, Device& oracle, OutputVerdict& verdict) {
  int64_t terms = 0;
  for (const OpRecord& record : records) {
    for (const Stage& stage : record.stages) terms += stage.terms;
  }
  const bool adds_by_ids = judged.op == OpId::index_add || judged.op == OpId::scatter_add;
  if (adds_by_ids) terms = 1 + judged.inputs[1].numel();
  Arithmetic wide{.extended = true};
  const Gate gate =
      float64_op_gate(judged, output, o, terms, [&](const std::vector<Tensor>& inputs) {
        JudgedOp other = judged;
        other.inputs = inputs;
        return on_oracle(other, oracle, true, OpSet().set(), wide)[output];
      });
  const bool green = verdict.status == Status::pass || verdict.status == Status::blind;
  if (green && !gate.passed) {
    verdict.status = Status::fail;
    verdict.reason = text(gate.where, " is off by ", gate.statistic, " of what float64 allows");
  }
  verdict.gates.push_back(gate);
}

}  // namespace

OpRun again(const OpCall& call) {
  return [call](Ops& ops, const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) {
    call.with(outputs, inputs).on(ops);
  };
}

std::vector<OutputVerdict> judge_op(const JudgedOp& judged, const std::vector<OpRecord>& records,
                                    Device& oracle) {
  const OpRow& row = row_of(judged.op);
  const DType made = judged.outputs[0].dtype();
  const DType storage = is_floating(made) ? made : DType::f32;
  const RunFacts facts = facts_of(records, storage);
  const bool exact = row.bits == OpBits::exact || is_whole(made);
  Arithmetic plain, wide;
  plain.extended = wide.extended = made == DType::f64;
  std::vector<Tensor> model;
  if (!exact) model = on_oracle(judged, oracle, false, facts.single_rounding, plain);
  const std::vector<Tensor> float64 =
      on_oracle(judged, oracle, !exact, OpSet().set(), exact ? plain : wide);
  std::vector<OutputVerdict> out;
  for (size_t i = 0; i < judged.outputs.size(); ++i) {
    if (!judged.outputs[i].defined() || judged.outputs[i].numel() == 0) continue;
    OutputCase output;
    Evidence& e = output.evidence;
    e.name = std::string(row.operands.operands.at(i).name);
    e.y = judged.outputs[i];
    e.axes = axes_of(row.operands.operands.at(i), e.y.rank());
    e.oracle = float64[i];
    if (!exact) e.model = model[i];
    Rule& rule = output.rule;
    rule.held_to_model = !exact;
    rule.contract = facts.contract;
    rule.contract.storage = is_floating(e.y.dtype()) ? e.y.dtype() : storage;
    rule.stages = facts.stages;
    rule.exact = exact;
    rule.max_abs_score = wide.max_abs_score;
    rule.conformance = size_of(rule.contract.storage) == 2 && facts.single_rounding.none();
    if (!exact) {
      output.allowance.simulate = [&, i](int count) {
        return simulated(judged, i, oracle, facts.single_rounding, count);
      };
    }
    if (row.bits == OpBits::scaled) {
      const bool fused_sum = judged.outputs.size() > 1;
      const Tensor& scaled = fused_sum ? judged.outputs[0] : judged.inputs[0];
      rule.cascade_outputs = alike_in_row(scaled_rows(row, scaled));
    }
    out.push_back(judge(output));
    if (e.y.dtype() == DType::f64 && !exact)
      hold_in_float64(judged, i, e.oracle, records, oracle, out.back());
  }
  return out;
}

}  // namespace plumb::harness
