// Operand sets of a benchmark: many copies of the same operands with different contents, so that a
// call finds nothing of its own in a cache; outputs are between canaries.
#pragma once

#include "harness/bench/cases.h"
#include "harness/execution/guarded.h"
#include "kernels/core/device.h"

namespace plumb::harness {

class OperandSets {
 public:
  // As many sets as fill `bytes`, at least one and at most 4096. Normal numbers come from one pool,
  // each operand of each set starting elsewhere in it.
  OperandSets(Device& device, const std::vector<BenchOperand>& operands, double bytes);

  int64_t count() const { return count_; }
  BenchOperands set(int64_t index) const;
  // "" or which output was written out of bounds since these were made, and where.
  std::string damage() const;

 private:
  std::vector<BenchOperand> operands_;
  std::vector<Tensor> slabs_;  // [count, ...] per operand
  std::vector<std::pair<std::string, Guarded>> outputs_;
  int64_t count_ = 1;
};

}  // namespace plumb::harness
