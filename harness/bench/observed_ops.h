// ObservedOps: a device's ops, each call counted and, on samples of its operands, judged.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/cost.h"
#include "harness/bench/sample.h"
#include "harness/ops/judged_op.h"

namespace plumb::harness {

// Forwards every call to the device's ops and keeps what it needs (bytes, flops), which variants
// ran and the worst verdict. A fused op is one call, also where the device composes it.
class ObservedOps final : public Ops {
 public:
  ObservedOps(Device& device, Device& oracle);

  const Cost& cost() const { return cost_; }
  Status status() const { return status_; }              // of all calls so far
  const std::string& reason() const { return reason_; }  // "" for pass
  const std::vector<OpRecord>& records() const { return all_records_; }

  Contract contract(OpId op, DType storage) const override { return inner_.contract(op, storage); }
  bool overrides(OpId op) const override { return is_fused(op); }

 private:
  using Tensors = std::vector<Tensor>;

  // Of one sample, at most.
  static constexpr int64_t kRows = 16, kHeads = 4, kColumns = 64;
  static Picks pick_rows(const Tensor& t);
  static Picks pick_heads(const Tensor& t);

  void do_call(const OpCall& call) override;
  // The device's op on all of the operands; its records are in records_ afterwards.
  void forward(const OpCall& call);
  void judge(const JudgedOp& sampled);
  // An op whose rows (and heads) do not know of each other: tensors of rank 2 and more are sampled
  // along the axes before the last, vectors kept whole.
  void row_op(const OpCall& call);
  // What is sampled otherwise.
  void embedding_op(const OpCall& call);
  void linear_op(const OpCall& call);
  void gemm_op(const OpCall& call);
  void rotary_table_op(const OpCall& call);
  void mask_rows_op(const OpCall& call);
  void transpose_op(const OpCall& call);
  void position_ids_op(const OpCall& call);
  void matmul_op(const OpCall& call);
  void repeat_heads_op(const OpCall& call);
  void causal_mask_op(const OpCall& call);
  void sdpa_op(const OpCall& call);
  void causal_conv1d_op(const OpCall& call);
  void ssd_scan_op(const OpCall& call);
  Tensors gathered(const Tensors& tensors, const Picks& rows, const Picks& heads);

  Ops& inner_;
  Device& oracle_;
  Cost cost_;
  Status status_ = Status::pass;
  std::string reason_;
  std::vector<OpRecord> records_, all_records_;
};

}  // namespace plumb::harness
