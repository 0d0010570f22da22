// Cases: what the judge needs of a run, from the recording, from what the run did, and from the
// oracle.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/execution/execute.h"
#include "harness/judge/verdict.h"
#include "harness/referee/referee_rule.h"
#include "harness/trace/recorded_case.h"

namespace plumb::harness {

// The arithmetic of one run of a block, whoever ran it.
struct RunFacts {
  DType dtype = DType::f32;
  Contract contract;          // of the whole block: the coarsest of its ops
  std::vector<Stage> stages;  // the sums of its ops
  OpSet single_rounding;      // fused ops that round once, at their output
  OpSet unrounded_inside;     // others that promise so where eager code also rounds inside
};

RunFacts facts_of(const std::vector<OpRecord>& records, DType dtype);

// The facts of a program that we did not see run: products in the storage dtype, float32 sums in
// any order, rounded as `points` says.
RunFacts external_facts(const Recording& recording, const blocks::BlockEntry& block,
                        const Checkpoint& checkpoint, const HostOperands& operands, Device& oracle,
                        DType dtype, RoundingPoints points);

// Whether the run is held to bits that the recording lacks: it promises to round elsewhere.
bool needs_other_bits(const Recording& recording, const Checkpoint& checkpoint,
                      const blocks::BlockEntry& block, const RunFacts& facts);

// Says in the case how far `ours`, our float64 block's output, is from the recording's oracle.
void hold_to_float64(Evidence& output, const Tensor& ours);

// One case per output, `outputs` being what the run made. Runs the block on the oracle where the
// verdict needs its rounded model or, for a dtype other than the recording's, the oracle itself; of
// a sampled output, on the chosen rows only. Where those cannot be computed alone, the reference
// is used as the model, and another dtype is Unsupported. Not `refereed`: by the recording alone.
std::vector<OutputCase> output_cases(const Recording& recording, const Checkpoint& checkpoint,
                                     const blocks::BlockEntry& block, const HostOperands& operands,
                                     const std::map<std::string, Tensor>& outputs,
                                     const RunFacts& facts, Device& oracle, bool refereed = true);

}  // namespace plumb::harness
