#include "harness/cases.h"

#include <algorithm>
#include <cmath>

#include "harness/conformance.h"
#include "harness/oracle_runs.h"
#include "harness/result.h"
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

namespace {

// Whether values of one dtype are exact in another.
bool holds(DType wide, DType narrow) {
  return unit_roundoff(wide) <= unit_roundoff(narrow) && info(wide).max >= info(narrow).max;
}

std::vector<double> doubles(const Tensor& t) {
  return {t.data<double>(), t.data<double>() + t.numel()};
}

// Chosen rows of the run's whole output into the case, and what there is to know of the others.
void sample_rows(OutputCase& out, const Recording& recording, const Checkpoint& checkpoint,
                 const Tensor& y, DType dtype) {
  const OutputRef& ref = checkpoint.outputs.at(out.name);
  const Shape expected = recording.output_shape(ref);
  require<BadInput>(y.shape() == expected, "judge", "output ", out.name, " is ", y.shape(),
                    ", expected ", expected);
  const Layout layout = layout_of(y.shape(), ref.axes);
  const std::vector<double> matrix = to_matrix(y, layout);
  RowSample sample;
  sample.tokens = chosen_tokens(recording, checkpoint, out.name);
  sample.of = ref.sampled->of;
  sample.y = sketch_rows(matrix, layout.rows, layout.columns);
  sample.reference = doubles(recording.read(ref.sampled->reference));
  sample.oracle = doubles(recording.read(ref.sampled->oracle));
  sample.rms = doubles(recording.read(ref.sampled->rms));
  sample.comparable = holds(dtype, recording.dtype());
  for (size_t i = 0; i < matrix.size(); ++i) {
    if (std::isfinite(matrix[i])) continue;
    if (sample.not_finite++ == 0) {
      sample.first_bad_row = static_cast<int64_t>(i) / layout.columns;
    }
  }
  out.y = take_rows(y, token_axis(ref.axes), sample.tokens);
  out.sample = std::move(sample);
}

// The whole block is one, or it is added to a projection of an MLP.
bool has_adapter(const BlockEntry& block, const Checkpoint& checkpoint) {
  return block.name == "low_rank_adapter" || checkpoint.params.boolean_or("adapter", false);
}

// An adapter's rank is the length of its second sum, the shortest of all; the sum before it makes
// the inner vector.
void take_bottleneck(OutputCase& output) {
  const auto shorter = [](const Stage& a, const Stage& b) { return a.terms < b.terms; };
  const auto second = std::min_element(output.stages.begin(), output.stages.end(), shorter);
  if (second == output.stages.begin()) return;
  const auto first = second - 1;
  output.bottleneck = {second->terms, *first};
  output.cascade_stages.erase(output.cascade_stages.begin() + (first - output.stages.begin()));
}

}  // namespace

RunFacts facts_of(const std::vector<OpRecord>& records, DType dtype) {
  RunFacts out{dtype, block_contract(records, dtype), all_stages(records), {}};
  for (const OpRecord& record : records) {
    if (is_fused(record.op) && record.contract.points != RoundingPoints::eager) {
      out.single_rounding.set(static_cast<size_t>(record.op));
    }
  }
  return out;
}

RunFacts facts_of_stranger(const Recording& recording, const BlockEntry& block,
                           const Checkpoint& checkpoint, const HostOperands& operands,
                           Device& oracle, DType dtype, RoundingPoints points) {
  const OpSet fused = points == RoundingPoints::fused ? ops_with_single_rounding() : OpSet();
  OracleRuns runs(recording, checkpoint, block, operands, oracle);
  RunFacts out = facts_of(runs.records(fused), dtype);
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
                        (block.bits != BitRule::exact && block.bits != BitRule::none);

  OracleRuns runs(recording, checkpoint, block, operands, oracle);
  std::vector<OutputCase> out;
  for (const auto& [name, y] : outputs) {
    OutputCase output = recorded_case(recording, checkpoint, name);
    if (checkpoint.outputs.at(name).sampled) {
      sample_rows(output, recording, checkpoint, y, dtype);
    } else {
      output.y = y;
    }
    output.contract = facts.contract;
    output.contract.storage = is_floating(y.dtype()) ? y.dtype() : dtype;
    output.stages = facts.stages;
    output.exact = exact;
    output.conformance = conforms;
    // Without its model a sampled output is held to the reference.
    const bool modelled = !exact && dtype != DType::f64 && (from_model || conforms);
    if (modelled && (runs.possible(name) || other_dtype)) {
      output.model = runs.rounded(name, facts.single_rounding);
      output.reference_is_model = from_model;
    }
    if (const Tensor o = other_dtype ? runs.float64(name) : Tensor(); o.defined()) {
      output.oracle = o;
      output.reference = {};
      output.delta = {};
    }
    if (block.bits == BitRule::cascade && !facts.stages.empty()) {
      output.cascade_stages.assign(facts.stages.begin(), facts.stages.end() - 1);
      if (has_adapter(block, checkpoint)) take_bottleneck(output);
    }
    if (block.name == "sdpa") output.cascade_outputs = y.dim(-1);
    if (block.bits == BitRule::scaled) {
      output.cascade_outputs = alike_in_row(operands.inputs.at("x"));
    }
    out.push_back(std::move(output));
  }
  return out;
}

void note_sample(const OutputCase& output, CheckpointResult& result) {
  if (!output.sample) return;
  const bool other_model = output.reference_is_model || output.conformance;
  const bool lacks_model = other_model && !output.model.defined() && !output.exact;
  result.details.push_back(text("output \"", output.name, "\" judged from ",
                                words_of(*output.sample),
                                lacks_model ? ", without its rounded model" : ""));
}

std::vector<Candidate> rounding_candidates(const Recording& recording, const BlockEntry& block,
                                           const Checkpoint& checkpoint,
                                           const HostOperands& operands, Device& oracle,
                                           const std::string& output) {
  std::vector<Candidate> out;
  if (!OracleRuns(recording, checkpoint, block, operands, oracle).possible(output)) return out;
  const auto add = [&](const std::string& name, const Checkpoint& variant, OpSet fused) {
    OracleRuns runs(recording, variant, block, operands, oracle);
    out.push_back({name, runs.rounded(output, fused)});
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
