#include "harness/referee/cases.h"

#include <algorithm>
#include <cmath>

#include "blocks/op.h"
#include "harness/judge/float64_agreement.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/sums.h"
#include "harness/recording/layout.h"
#include "harness/referee/keyless_rows.h"
#include "harness/referee/oracle_runs.h"
#include "harness/result/result.h"
#include "harness/trace/asked_contract.h"
#include "harness/trace/recorded_case.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Whether an op's output is not all that eager code rounds of it: fused ops, and these of ops.h.
bool rounds_inside(OpId op) {
  switch (op) {
    case OpId::rms_norm:
    case OpId::rotary:
    case OpId::causal_conv1d:
    case OpId::ssd_scan:
    case OpId::gated_rms_norm: return true;
    default: return is_fused(op);
  }
}

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
    if (rounds_inside(record.op)) out.points = std::max(out.points, c.points);
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

}  // namespace

namespace {

// The whole block is one, or it is added to a projection of an MLP.
bool has_adapter(const blocks::BlockEntry& block, const Checkpoint& checkpoint) {
  return block.name == "low_rank_adapter" || checkpoint.params.boolean_or("adapter", false);
}

// An adapter's rank is the length of its second sum, the shortest of all; the sum before it makes
// the inner vector.
void take_bottleneck(Rule& rule) {
  const auto shorter = [](const Stage& a, const Stage& b) { return a.terms < b.terms; };
  const auto second = std::min_element(rule.stages.begin(), rule.stages.end(), shorter);
  if (second == rule.stages.begin()) return;
  const auto first = second - 1;
  rule.bottleneck = {second->terms, *first};
  rule.cascade_stages.erase(rule.cascade_stages.begin() + (first - rule.stages.begin()));
}

}  // namespace

RunFacts facts_of(const std::vector<OpRecord>& records, DType dtype) {
  RunFacts out{dtype, block_contract(records, dtype), all_stages(records), {}, {}};
  for (const OpRecord& record : records) {
    if (record.contract.points == RoundingPoints::eager || !rounds_inside(record.op)) continue;
    OpSet& ops = is_fused(record.op) ? out.single_rounding : out.unrounded_inside;
    ops.set(static_cast<size_t>(record.op));
  }
  return out;
}

RunFacts external_facts(const Recording& recording, const blocks::BlockEntry& block,
                        const Checkpoint& checkpoint, const HostOperands& operands, Device& oracle,
                        DType dtype, RoundingPoints points) {
  const OpSet fused = points == RoundingPoints::fused ? ops_with_single_rounding() : OpSet();
  OracleRuns runs(recording, checkpoint, block, operands, oracle);
  RunFacts out = facts_of(runs.records(fused), dtype);
  out.contract = {dtype, dtype, {}, points};
  for (Stage& stage : out.stages) stage.accumulator = out.contract.accumulator;
  return out;
}

namespace {

bool is_composite(const blocks::BlockEntry& block) {
  return block.bits == blocks::BitRule::none || block.bits == blocks::BitRule::cascade;
}

// How the run relates to the recording, which decides what it is held to.
struct Standing {
  bool other_dtype = false;
  bool held_to_model = false;
  bool coarser = false;
};

Standing standing_of(const Recording& recording, const Checkpoint& checkpoint,
                     const RunFacts& facts) {
  const auto recorded = recording.contracts().find(checkpoint.contract);
  const bool recorded_eager =
      recorded != recording.contracts().end() && recorded->second.points == RoundingPoints::eager;
  const bool eager = facts.contract.points == RoundingPoints::eager;
  Standing out;
  out.other_dtype = facts.dtype != recording.dtype() && facts.dtype != DType::f64;
  out.held_to_model = !recorded_eager || !eager || out.other_dtype;
  out.coarser = !recorded_eager && eager;
  return out;
}

// Of block `op` the op's row says it.
blocks::BitRule bits_of(const blocks::BlockEntry& block, const Checkpoint& checkpoint) {
  if (block.name != blocks::kOpBlock) return block.bits;
  switch (blocks::row_of_call(checkpoint.params).bits) {
    case OpBits::exact: return blocks::BitRule::exact;
    case OpBits::scaled: return blocks::BitRule::scaled;
    default: return blocks::BitRule::leaf;
  }
}

// Attention in one go rounds its probabilities against a running maximum: no model has its bits.
bool demands_bits(blocks::BitRule bits, const RunFacts& facts) {
  return size_of(facts.dtype) == 2 && facts.single_rounding.none() &&
         bits != blocks::BitRule::exact && bits != blocks::BitRule::none;
}

// The way to round that the run promises.
RoundingWay promised_way(const std::string& output, const RunFacts& facts, OracleRuns& runs) {
  RoundingWay out{.points = facts.contract.points, .fused = facts.single_rounding};
  if (facts.unrounded_inside.none()) return out;
  Arithmetic arithmetic;
  runs.with(output, facts.single_rounding, arithmetic);
  for (const RoundingPoint& point : arithmetic.points) {
    bool inside = false;
    for (int i = 0; i < kOpCount; ++i) {
      inside |= facts.unrounded_inside[static_cast<size_t>(i)] &&
                point.name.starts_with(text(name_of(static_cast<OpId>(i)), '.'));
    }
    out.changed.push_back(inside && point.eager);
  }
  return out;
}

std::optional<Spread> recorded_spread(const Checkpoint& checkpoint, const std::string& output,
                                      const Contract& contract) {
  const OutputRef& ref = checkpoint.outputs.at(output);
  const bool truncates = contract.accumulator.rounding == SumRounding::toward_zero;
  return truncates && ref.truncated ? ref.truncated : ref.spread;
}

// Our block in float64 on the recorded operands: whoever judges by it must make o of them.
class Referee {
 public:
  Referee(const Recording& recording, const Checkpoint& checkpoint, const blocks::BlockEntry& block,
          const HostOperands& operands, bool other_dtype, OpSet fused, Device& oracle)
      : checkpoint_(checkpoint), block_(block), fused_(fused) {
    if (other_dtype) recorded_ = read_operands(recording, checkpoint, recording.dtype());
    runs_.emplace(recording, checkpoint, block, recorded_ ? *recorded_ : operands, oracle);
  }

  // Says so in the case, which has the recorded reference and delta. Nothing where the block cannot
  // be computed, or has no floats.
  void hold_to_oracle(Evidence& output, Rule& rule) {
    if (!runs_->possible(output.name)) return;
    const Tensor ours = runs_->float64(output.name, fused_);
    if (!checkpoint_.outputs.at(output.name).sampled) {
      rule.max_abs_score = runs_->max_abs_score();  // no recording widens its own limits
      scored_ = true;
    }
    if (ours.defined()) hold_to_float64(output, ours);
    disagrees_ = disagrees_ || !(output.float64_share.value_or(0) <= 1);
  }

  // Where the block does not make o of the operands, the run has another score for the same reason:
  // that is a failure, and the recording is what it claims to be.
  void hold_to_score() const {
    if (scored_ && !disagrees_) require_stated_score(checkpoint_, runs_->max_abs_score());
  }

 private:
  const Checkpoint& checkpoint_;
  const blocks::BlockEntry& block_;
  const OpSet fused_;
  std::optional<HostOperands> recorded_;
  std::optional<OracleRuns> runs_;
  bool scored_ = false, disagrees_ = false;  // some output
};

}  // namespace

void hold_to_float64(Evidence& output, const Tensor& ours) {
  Evidence with_ours = output;
  with_ours.y = ours;  // the device's may have another shape
  const CaseArrays a = load_arrays(with_ours);
  std::vector<uint8_t> compared = a.valid;
  double max_abs = 0;
  for (size_t i = 0; i < a.o.size(); ++i) {
    compared[i] = compared[i] && std::isfinite(a.o[i]);
    if (compared[i]) max_abs = std::max(max_abs, std::fabs(a.o[i]));
  }
  const Float64Agreement found = float64_agreement(a.y, a.o, a.delta, compared, max_abs);
  output.float64_share = found.share;
  output.float64_at = found.at < 0 ? "" : element_name(a.layout, found.at);
}

bool needs_other_bits(const Recording& recording, const Checkpoint& checkpoint,
                      const blocks::BlockEntry& block, const RunFacts& facts) {
  return demands_bits(bits_of(block, checkpoint), facts) &&
         standing_of(recording, checkpoint, facts).held_to_model;
}

std::vector<OutputCase> output_cases(const Recording& recording, const Checkpoint& checkpoint,
                                     const blocks::BlockEntry& block, const HostOperands& operands,
                                     const std::map<std::string, Tensor>& outputs,
                                     const RunFacts& facts, Device& oracle, bool refereed) {
  const DType dtype = facts.dtype;
  const Standing standing = standing_of(recording, checkpoint, facts);
  const blocks::BitRule bits = bits_of(block, checkpoint);
  const bool exact = bits == blocks::BitRule::exact;
  const bool narrow = size_of(dtype) == 2;
  const bool conforms = demands_bits(bits, facts);

  const auto runs = std::make_shared<OracleRuns>(recording, checkpoint, block, operands, oracle);
  Referee referee(recording, checkpoint, block, operands, standing.other_dtype,
                  facts.single_rounding, oracle);
  std::vector<OutputCase> out;
  for (const auto& [name, y] : outputs) {
    OutputCase output = recorded_case(recording, checkpoint, name);
    Evidence& e = output.evidence;
    Rule& rule = output.rule;
    if (checkpoint.outputs.at(name).sampled) {
      sample_rows(e, recording, checkpoint, y, dtype);
    } else {
      e.y = y;
      if (block.name == "softmax") set_keyless_rows_aside(e, operands.inputs.at("x"));
    }
    rule.contract = facts.contract;
    rule.contract.storage = is_floating(y.dtype()) ? y.dtype() : dtype;
    rule.stages = facts.stages;
    rule.exact = exact;
    rule.composite = is_composite(block);
    rule.conformance = conforms;
    rule.leaf = !rule.composite && block.name != "sdpa";
    rule.held_to_model = standing.held_to_model && !exact;
    rule.coarser = standing.coarser;
    if (refereed && !exact && dtype != DType::f64) referee.hold_to_oracle(e, rule);
    const bool possible = runs->possible(name);
    RoundingWay way{.fused = facts.single_rounding};
    // In float32 the model rounds nothing that counts, where there is a reference.
    const bool modelled =
        !exact && dtype != DType::f64 &&
        (standing.other_dtype || (narrow && (standing.held_to_model || conforms)));
    const std::optional<Tensor> recorded =
        standing.held_to_model ? std::nullopt : recorded_model(recording, checkpoint, output);
    if (modelled && recorded) {
      e.model = *recorded;
    } else if (modelled && refereed && (possible || standing.other_dtype)) {
      way = promised_way(name, facts, *runs);
      e.model = way.changed.empty() ? runs->rounded(name, way.fused) : runs->rounded_as(name, way);
    }
    if (!standing.other_dtype)
      output.allowance.spread = recorded_spread(checkpoint, name, facts.contract);
    // A block that does not make o says nothing of correct kernels.
    const bool right = e.float64_share.value_or(0) <= 1;
    if (!exact && dtype != DType::f64 && possible && right) {
      output.allowance.simulate = [runs, name = name, way](int count) {
        return way.changed.empty() ? runs->simulated(name, way.fused, count)
                                   : runs->simulated_as(name, way, count);
      };
      if (narrow && rule.composite && rule.held_to_model) {
        output.allowance.redraw = [runs, name = name, fused = facts.single_rounding](int count) {
          return runs->redrawn(name, fused, count);
        };
      }
    }
    if (const Tensor o = standing.other_dtype ? runs->float64(name) : Tensor(); o.defined()) {
      e.oracle = o;
      e.reference = {};
      e.delta = {};
      e.ill_conditioned = {};  // of kernels in the recording's dtype
    }
    if (block.bits == blocks::BitRule::cascade && !facts.stages.empty()) {
      rule.cascade_stages.assign(facts.stages.begin(), facts.stages.end() - 1);
      if (has_adapter(block, checkpoint)) take_bottleneck(rule);
    }
    if (block.name == "sdpa") rule.cascade_outputs = y.dim(-1);
    if (bits == blocks::BitRule::scaled) {
      rule.cascade_outputs = alike_in_row(operands.inputs.at("x"));
    }
    if (allows_inside(checkpoint, recording, dtype) && !exact) {
      take_inside(output, recording, checkpoint);
    }
    out.push_back(std::move(output));
  }
  referee.hold_to_score();
  return out;
}

}  // namespace plumb::harness
