#include "harness/bench/observed_ops.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/ops/ids.h"

namespace plumb::harness {
ObservedOps::ObservedOps(Device& device, Device& oracle)
    : Ops(device.ops().device()), inner_(device.ops()), oracle_(oracle) {}  // whose the tensors are

Picks ObservedOps::pick_rows(const Tensor& t) {
  constexpr int64_t kElements = int64_t{1} << 19;  // of one sampled tensor at most
  const int64_t wide = std::max<int64_t>(1, t.dim(-1));
  return picks(t.dim(-2), std::clamp<int64_t>(kElements / wide, 2, kRows));
}

Picks ObservedOps::pick_heads(const Tensor& t) {
  return t.rank() == 4 ? picks(t.dim(1), kHeads) : Picks{};
}

void ObservedOps::forward(const OpCall& call) {
  cost_ += cost_of(call);
  records_.clear();
  inner_.observe(&records_);
  try {
    call.on(inner_);
    device().synchronize();
  } catch (...) {
    inner_.observe(nullptr);
    throw;
  }
  inner_.observe(nullptr);
  all_records_.insert(all_records_.end(), records_.begin(), records_.end());
}

void ObservedOps::judge(const JudgedOp& sampled) {
  const Verdict verdict = combine(judge_op(sampled, records_, oracle_));
  if (verdict.status == Status::pass || verdict.status == Status::blind) return;
  if (status_ == Status::pass) reason_ = text(name_of(sampled.op), ": ", verdict.reason);
  status_ = worse(status_, verdict.status);
}

ObservedOps::Tensors ObservedOps::gathered(const Tensors& tensors, const Picks& rows,
                                           const Picks& heads) {
  Tensors out;
  for (const Tensor& t : tensors) {
    if (!t.defined() || t.rank() < 2) {
      out.push_back(collected(inner_, t));
      continue;
    }
    const Tensor some = picked(t, -2, rows);
    out.push_back(collected(inner_, t.rank() == 4 ? picked(some, 1, heads) : some));
  }
  return out;
}

void ObservedOps::do_call(const OpCall& call) {
  switch (call.op) {
    case OpId::embedding: return embedding_op(call);
    case OpId::linear: return linear_op(call);
    case OpId::gemm: return gemm_op(call);
    case OpId::rotary_table: return rotary_table_op(call);
    case OpId::mask_rows: return mask_rows_op(call);
    case OpId::transpose: return transpose_op(call);
    case OpId::position_ids: return position_ids_op(call);
    case OpId::matmul: return matmul_op(call);
    case OpId::repeat_heads: return repeat_heads_op(call);
    case OpId::causal_mask: return causal_mask_op(call);
    case OpId::sdpa: return sdpa_op(call);
    case OpId::causal_conv1d: return causal_conv1d_op(call);
    case OpId::ssd_scan: return ssd_scan_op(call);
    default: return row_op(call);
  }
}

void ObservedOps::row_op(const OpCall& call) {
  const Tensors outputs = call.outputs(), inputs = call.inputs();
  const Picks rows = pick_rows(outputs[0]), heads = pick_heads(outputs[0]);
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = gathered(inputs, rows, heads);  // before the call: it may be in place
  forward(call);
  sampled.outputs = gathered(outputs, rows, heads);
  judge(sampled);
}

void ObservedOps::embedding_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &ids = t[1], &weight = t[2];
  const Tensor all_ids = collected(inner_, ids);
  const Picks rows = picks(ids.numel(), kRows);
  const Tensor table = host_tensor(weight.dtype(), {rows.count, weight.dim(1)});
  const Tensor numbers = host_tensor(DType::i64, {rows.count});
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t id = id_at(all_ids, rows[i]);
    device().download(table.data<char>() + i * table.bytes() / rows.count,
                      weight.slice(0, id, id + 1));
    numbers.data<int64_t>()[i] = i;
  }
  forward(call);
  const Tensor flat = out.view({ids.numel(), weight.dim(1)});
  judge({call.op, {collected(inner_, picked(flat, 0, rows))}, {numbers, table}, again(call)});
}

void ObservedOps::linear_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &x = t[1], &weight = t[2], &bias = t[3];
  const Picks rows = picks(x.dim(-2), kRows), columns = picks(weight.dim(0), kColumns);
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {collected(inner_, picked(x, -2, rows)),
                    collected(inner_, picked(weight, 0, columns)),
                    picked_columns(collected(inner_, bias), columns)};
  forward(call);
  sampled.outputs = {picked_columns(collected(inner_, picked(out, -2, rows)), columns)};
  judge(sampled);
}

// Of a as it is and b transposed: rows of both.
void ObservedOps::gemm_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &a = t[1], &b = t[2], &c = t[3], &bias = t[4];
  const auto& params = call.get<GemmParams>();
  const Picks rows = params.transpose_a ? Picks{} : picks(out.dim(-2), kRows);
  const Picks columns = params.transpose_b ? picks(out.dim(-1), kColumns) : Picks{};
  const auto some_of = [&](const Tensor& of) {
    const Tensor some = of.defined() ? collected(inner_, picked(of, -2, rows)) : Tensor();
    return columns.count == 0 ? some : picked_columns(some, columns);
  };
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {collected(inner_, picked(a, -2, rows)),
                    collected(inner_, picked(b, -2, columns)), some_of(c),
                    columns.count == 0 ? collected(inner_, bias)
                                       : picked_columns(collected(inner_, bias), columns)};
  forward(call);
  sampled.outputs = {some_of(out)};
  judge(sampled);
}

void ObservedOps::rotary_table_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Picks rows = picks(t[2].dim(1), kRows), no_heads;
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {picked_columns(collected(inner_, t[2]), rows), collected(inner_, t[3])};
  forward(call);
  sampled.outputs = gathered({t[0], t[1]}, rows, no_heads);
  judge(sampled);
}

void ObservedOps::mask_rows_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Picks rows = pick_rows(t[0]), all_heads;
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {gathered({t[1]}, rows, all_heads)[0],
                    picked_columns(collected(inner_, t[2]), rows)};
  forward(call);
  sampled.outputs = gathered({t[0]}, rows, all_heads);
  judge(sampled);
}

// A row of the result is a column of x.
void ObservedOps::transpose_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Picks rows = pick_rows(t[0]), heads = pick_heads(t[0]), every_row;
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {picked_columns(gathered({t[1]}, every_row, heads)[0], rows)};
  forward(call);
  sampled.outputs = gathered({t[0]}, rows, heads);
  judge(sampled);
}

void ObservedOps::position_ids_op(const OpCall& call) {
  const Tensors t = call.tensors();
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = {collected(inner_, t[1])};
  forward(call);
  sampled.outputs = {collected(inner_, t[0])};
  judge(sampled);
}

}  // namespace plumb::harness
