// Runs of a checkpoint's block on the oracle device: the float64 block, rounded models, and
// simulated correct kernels. Of a sampled output only the chosen rows are computed, from those rows
// of the inputs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/execution/execute.h"
#include "kernels/oracle/arithmetic.h"

namespace plumb::harness {

// One way to round a block: a member of the family of harness/referee/rounding_family.h.
struct RoundingWay {
  std::string name = {};  // "rounds as HF eager does", "keeps x / rms(x) in float32"
  RoundingPoints points = RoundingPoints::eager;
  OpSet fused = {};
  std::vector<bool> changed = {};        // Arithmetic::changed
  std::optional<int64_t> key_tile = {};  // Arithmetic::key_tile
  bool own_table = false;                // cos and sin are the kernel's own, in float32
};

class OracleRuns {
 public:
  // All arguments must outlive this.
  OracleRuns(const Recording& recording, const Checkpoint& checkpoint,
             const blocks::BlockEntry& block, const HostOperands& operands, Device& oracle);

  // Whether the output, or its chosen rows, can be computed without a run of full size: not where
  // rows depend on each other (RowRule::all) or the output leaves some input tokens out.
  bool possible(const std::string& output) const;

  // The float64 block, rounded to the operands' dtype after every operation, but only at the output
  // of the `fused` ones. Chosen rows of a sampled output. Throws Unsupported unless possible().
  Tensor rounded(const std::string& output, OpSet fused);
  Tensor rounded_as(const std::string& output, const RoundingWay& way);
  // The same with other arithmetic, which also gets what the run had; nothing of it is kept.
  Tensor with(const std::string& output, OpSet fused, Arithmetic& arithmetic);
  // `count` kernels as right as float32 arithmetic is, rounding where rounded() does.
  std::vector<Tensor> simulated(const std::string& output, OpSet fused, int count);
  // The same with every rounding drawn again: what kernels may give that round elsewhere.
  std::vector<Tensor> redrawn(const std::string& output, OpSet fused, int count);
  std::vector<Tensor> simulated_as(const std::string& output, const RoundingWay& way, int count);
  // The block in float64 on the operands as they are, of ops that run fused or composed.
  // Undefined for an output that has no floats.
  Tensor float64(const std::string& output, OpSet fused = OpSet().set());
  // Whether the recording has what cos and sin were made of: positions and inverse frequencies.
  bool has_rotary_table();
  // The largest |score| of an allowed key that attention had in the runs of float64(); 0: none.
  double max_abs_score() const { return max_abs_score_; }
  // The ops of one run, of chosen rows where that is possible.
  std::vector<OpRecord> records(OpSet fused);

 private:
  struct Part;
  std::shared_ptr<const RotaryTable> rotary_table();
  std::vector<Part> parts(const std::string& output, const HostOperands& operands) const;
  using Outputs = std::map<std::string, Tensor>;
  Tensor rows(const std::string& output, const HostOperands& operands, OpSet fused,
              Arithmetic* arithmetic);
  HostOperands widened(HostOperands operands) const;

  const Recording& recording_;
  const Checkpoint& checkpoint_;
  const blocks::BlockEntry& block_;
  const HostOperands& operands_;
  Device& oracle_;
  std::optional<Outputs> rounded_, float64_;  // runs of all rows
  OpSet rounded_fused_, float64_fused_;
  std::optional<std::shared_ptr<const RotaryTable>> table_;  // null: there is none
  std::vector<Outputs> simulated_;
  OpSet simulated_fused_;
  double max_abs_score_ = 0;
};

}  // namespace plumb::harness
