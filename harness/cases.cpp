#include "harness/cases.h"

#include <algorithm>

#include "kernels/error.h"

namespace plumb {
namespace {

// What the whole block promises: the coarsest of what its ops promise.
Contract block_contract(const std::vector<OpRecord>& records, DType dtype) {
  Contract out{dtype,
               dtype,
               {dtype == DType::f64 ? 53 : 24, SumRounding::nearest, 1},
               RoundingPoints::eager};
  for (const OpRecord& record : records) {
    const Contract& c = record.contract;
    if (unit_roundoff(c.multiply) > unit_roundoff(out.multiply)) out.multiply = c.multiply;
    if (c.accumulator.bits < out.accumulator.bits ||
        c.accumulator.rounding == SumRounding::toward_zero) {
      out.accumulator = c.accumulator;
    }
    out.points = std::max(out.points, c.points);  // eager, fused, flash
  }
  return out;
}

std::vector<Stage> all_stages(const std::vector<OpRecord>& records) {
  std::vector<Stage> out;
  for (const OpRecord& record : records) {
    out.insert(out.end(), record.stages.begin(), record.stages.end());
  }
  return out;
}

// Only these have a version on the oracle that rounds less often than the eager composition.
OpSet ops_with_single_rounding() {
  OpSet out;
  for (OpId op : {OpId::sdpa, OpId::gated_activation, OpId::softcap}) {
    out.set(static_cast<size_t>(op));
  }
  return out;
}

// The rounded model: the float64 block, rounded to the operands' dtype after every operation, but
// only at the output of the `fused` ones.
std::map<std::string, Tensor> rounded_model(const BlockEntry& block, const Checkpoint& checkpoint,
                                            const HostOperands& operands, Device& oracle,
                                            OpSet fused) {
  return execute(block, checkpoint, operands, oracle, {fused, 0xff}).outputs;
}

std::map<std::string, Tensor> float64_outputs(const BlockEntry& block, const Checkpoint& checkpoint,
                                              HostOperands operands, Device& oracle) {
  for (auto& [name, t] : operands.inputs) {
    if (is_floating(t.dtype())) t = converted(t, DType::f64);
  }
  for (auto& [name, t] : operands.weights) t = converted(t, DType::f64);
  for (OutputSpec& spec : operands.outputs) {
    if (is_floating(spec.dtype) && block.name != "causal_mask") spec.dtype = DType::f64;
  }
  return execute(block, checkpoint, operands, oracle, {OpSet().set(), 0xff}).outputs;
}

// The largest |score| that the recording states for an attention, or 0.
double max_abs_score(const Checkpoint& checkpoint) {
  const Params* params = &checkpoint.params;
  const auto nested = params->values().find("attention");
  if (nested != params->values().end()) params = std::get_if<Params>(&nested->second);
  if (!params || !params->has("max_abs_score")) return 0;
  return params->number_or_null("max_abs_score").value_or(0);
}

}  // namespace

OutputCase recorded_case(const Recording& recording, const Checkpoint& checkpoint,
                         const std::string& output) {
  const OutputRef& ref = checkpoint.outputs.at(output);
  OutputCase out;
  out.name = output;
  out.axes = ref.axes;
  out.reference = recording.read(ref.tensor);
  if (ref.delta) out.delta = recording.read(*ref.delta);
  if (ref.valid) {
    out.valid = recording.read(ref.valid->tensor);
    out.valid_axes = ref.valid->axes;
  }
  out.max_abs_score = max_abs_score(checkpoint);
  return out;
}

RunFacts facts_of(const std::vector<OpRecord>& records, DType dtype) {
  RunFacts out{dtype, block_contract(records, dtype), all_stages(records), {}};
  for (const OpRecord& record : records) {
    if (is_fused(record.op) && record.contract.points != RoundingPoints::eager) {
      out.single_rounding.set(static_cast<size_t>(record.op));
    }
  }
  return out;
}

RunFacts facts_of_stranger(const BlockEntry& block, const Checkpoint& checkpoint,
                           const HostOperands& operands, Device& oracle, DType dtype,
                           RoundingPoints points) {
  const OpSet fused = points == RoundingPoints::fused ? ops_with_single_rounding() : OpSet();
  const Execution seen = execute(block, checkpoint, operands, oracle, {fused, 0xff});
  RunFacts out = facts_of(seen.records, dtype);
  out.contract = {dtype, dtype, {}, points};
  for (Stage& stage : out.stages) stage.accumulator = out.contract.accumulator;
  return out;
}

std::vector<OutputCase> output_cases(const Recording& recording, const Checkpoint& checkpoint,
                                     const BlockEntry& block, const HostOperands& operands,
                                     const std::map<std::string, Tensor>& outputs,
                                     const RunFacts& facts, Device& oracle) {
  const DType dtype = facts.dtype;
  const bool other_dtype = dtype != recording.dtype() && dtype != DType::f64;
  const auto recorded = recording.contracts().find(checkpoint.contract);
  const bool recorded_eager =
      recorded != recording.contracts().end() && recorded->second.points == RoundingPoints::eager;
  const bool exact = block.bits == BitRule::exact;
  const bool from_model =
      !recorded_eager || facts.contract.points != RoundingPoints::eager || other_dtype;
  // Attention in one go rounds its probabilities against a running maximum: no model has its bits.
  const bool conforms = size_of(dtype) == 2 && facts.single_rounding.none() &&
                        (block.bits == BitRule::leaf || block.bits == BitRule::cascade);

  std::map<std::string, Tensor> model, float64;
  if (!exact && dtype != DType::f64 && (from_model || conforms)) {
    model = rounded_model(block, checkpoint, operands, oracle, facts.single_rounding);
  }
  if (other_dtype) float64 = float64_outputs(block, checkpoint, operands, oracle);

  std::vector<OutputCase> out;
  for (const auto& [name, y] : outputs) {
    OutputCase output = recorded_case(recording, checkpoint, name);
    output.y = y;
    output.contract = facts.contract;
    output.contract.storage = is_floating(y.dtype()) ? y.dtype() : dtype;
    output.stages = facts.stages;
    output.exact = exact;
    output.conformance = conforms;
    if (model.count(name)) {
      output.model = model.at(name);
      output.reference_is_model = from_model;
    }
    if (float64.count(name) && float64.at(name).dtype() == DType::f64) {
      output.oracle = float64.at(name);
      output.reference = {};
      output.delta = {};
    }
    if (block.bits == BitRule::cascade && !facts.stages.empty()) {
      output.cascade_stages.assign(facts.stages.begin(), facts.stages.end() - 1);
    }
    if (block.name == "sdpa") output.cascade_outputs = y.dim(-1);
    out.push_back(std::move(output));
  }
  return out;
}

std::vector<Candidate> rounding_candidates(const BlockEntry& block, const Checkpoint& checkpoint,
                                           const HostOperands& operands, Device& oracle,
                                           const std::string& output) {
  std::vector<Candidate> out;
  const auto add = [&](const std::string& name, const Checkpoint& variant, OpSet fused) {
    out.push_back({name, rounded_model(block, variant, operands, oracle, fused).at(output)});
  };
  add("HF eager", checkpoint, OpSet());
  if (block.name == "rms_norm") {
    Checkpoint other = checkpoint;
    const bool before = checkpoint.params.string("rounding") == "before";
    other.params.set("rounding", std::string(before ? "after" : "before"));
    add(before ? "weight before the cast (one rounding)" : "weight after the cast (two roundings)",
        other, OpSet());
  }
  add("fused (one rounding at the output)", checkpoint, ops_with_single_rounding());
  return out;
}

}  // namespace plumb
