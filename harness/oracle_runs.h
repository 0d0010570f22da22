// Runs of a checkpoint's block on the oracle device: rounded models, and the float64 oracle for a
// dtype other than the recording's. Of a sampled output only the chosen rows are computed, from
// those rows of the inputs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/execute.h"

namespace plumb {

class OracleRuns {
 public:
  // All arguments must outlive this.
  OracleRuns(const Recording& recording, const Checkpoint& checkpoint, const BlockEntry& block,
             const HostOperands& operands, Device& oracle);

  // Whether the output, or its chosen rows, can be computed without a run of full size: not where
  // rows depend on each other (RowRule::all) or the output leaves some input tokens out.
  bool possible(const std::string& output) const;

  // The float64 block, rounded to the operands' dtype after every operation, but only at the output
  // of the `fused` ones. Chosen rows of a sampled output. Throws Unsupported unless possible().
  Tensor rounded(const std::string& output, OpSet fused);
  // The block in float64 on the operands as they are. Undefined for an output that has no floats.
  Tensor float64(const std::string& output);
  // The ops of one run, of chosen rows where that is possible.
  std::vector<OpRecord> records(OpSet fused);

 private:
  struct Part;
  std::vector<Part> parts(const std::string& output, const HostOperands& operands) const;
  Tensor rows(const std::string& output, const HostOperands& operands, OpSet fused);
  HostOperands widened(HostOperands operands) const;

  const Recording& recording_;
  const Checkpoint& checkpoint_;
  const BlockEntry& block_;
  const HostOperands& operands_;
  Device& oracle_;
  std::optional<std::map<std::string, Tensor>> rounded_, float64_;  // runs of all rows
  OpSet rounded_fused_;
};

// The chosen tokens of a sampled output; BadInput unless they ascend within the output.
std::vector<int64_t> chosen_tokens(const Recording& recording, const Checkpoint& checkpoint,
                                   const std::string& output);

}  // namespace plumb
