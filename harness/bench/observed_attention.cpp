// The ops of an attention: some queries of some heads, with all keys that they see.
#include <algorithm>
#include <cmath>

#include "harness/bench/observed_ops.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Whether each of the picked queries may see each key: bool [1, 1, rows, S].
Tensor allowed_keys(const AttentionMask& mask, const Picks& rows, int64_t keys) {
  const Tensor out = host_tensor(DType::boolean, {1, 1, rows.count, keys});
  for (int64_t i = 0; i < rows.count; ++i) {
    const KeyRange range = visible_keys(mask, rows[i], keys);
    for (int64_t s = 0; s < keys; ++s) {
      out.data<bool>()[i * keys + s] = range.begin <= s && s < range.end;
    }
  }
  return out;
}

Tensor one_head(const Tensor& t, int64_t head) { return t.slice(0, 0, 1).slice(1, head, head + 1); }

}  // namespace

void ObservedOps::matmul_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &a = t[1], &b = t[2];
  const Picks rows = picks(a.dim(2), kRows), heads = picks(a.dim(1), kHeads);
  const int64_t group = a.dim(1) / b.dim(1);
  std::vector<JudgedOp> sampled;
  for (int64_t i = 0; i < heads.count; ++i) {
    sampled.push_back({call.op,
                       {},
                       {collected(inner_, picked(one_head(a, heads[i]), 2, rows)),
                        collected(inner_, one_head(b, heads[i] / group))},
                       again(call)});
  }
  forward(call);
  for (int64_t i = 0; i < heads.count; ++i) {
    JudgedOp& one = sampled[static_cast<size_t>(i)];
    one.outputs = {collected(inner_, picked(one_head(out, heads[i]), 2, rows))};
    judge(one);
  }
}

void ObservedOps::repeat_heads_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &x = t[1];
  const Picks rows = pick_rows(out), all_heads{0, 1, 0};
  JudgedOp sampled{call.op, {}, {}, again(call)};
  sampled.inputs = gathered({x}, rows, all_heads);
  forward(call);
  sampled.outputs = gathered({out}, rows, all_heads);
  judge(sampled);
}

void ObservedOps::causal_mask_op(const OpCall& call) {
  const Tensor out = call.tensors()[0];
  const auto& mask = call.get<AttentionMask>();
  require(!mask.key_valid.defined() && !mask.explicit_mask.defined(), "bench",
          "causal_mask is sampled without padding and explicit masks only");
  const Picks rows = picks(out.dim(2), kRows), no_heads;
  forward(call);
  JudgedOp sampled{.op = call.op};
  sampled.inputs = {allowed_keys(mask, rows, out.dim(3))};
  sampled.outputs = gathered({out}, rows, no_heads);
  sampled.run = [fully_masked = mask.fully_masked](Ops& ops, const Tensors& y, const Tensors& a) {
    AttentionMask picked_mask;
    picked_mask.explicit_mask = a[0];
    picked_mask.fully_masked = fully_masked;
    ops.causal_mask(y[0], picked_mask);
  };
  judge(sampled);
}

void ObservedOps::sdpa_op(const OpCall& call) {
  const Tensors t = call.tensors();
  const Tensor &out = t[0], &q = t[1], &k = t[2], &v = t[3];
  const auto& mask = call.get<AttentionMask>();
  const auto& params = call.get<SdpaParams>();
  require(!mask.key_valid.defined() && !mask.explicit_mask.defined(), "bench",
          "sdpa is sampled without padding and explicit masks only");
  forward(call);
  const Picks rows = picks(q.dim(2), kRows), heads = picks(q.dim(1), kHeads);
  const int64_t group = q.dim(1) / k.dim(1);
  for (int64_t i = 0; i < heads.count; ++i) {
    const int64_t head = heads[i];
    JudgedOp sampled{.op = call.op};
    sampled.inputs = {collected(inner_, picked(one_head(q, head), 2, rows)),
                      collected(inner_, one_head(k, head / group)),
                      collected(inner_, one_head(v, head / group)),
                      allowed_keys(mask, rows, k.dim(2))};
    const Tensor one = out.slice(0, 0, 1).slice(2, head, head + 1);
    sampled.outputs = {collected(inner_, picked(one, 1, rows))};
    sampled.run = [params, fully_masked = mask.fully_masked](Ops& ops, const Tensors& y,
                                                             const Tensors& a) {
      AttentionMask explicit_mask;
      explicit_mask.explicit_mask = a[3];
      explicit_mask.fully_masked = fully_masked;
      ops.sdpa(y[0], a[0], a[1], a[2], explicit_mask, params);
    };
    judge(sampled);
  }
}

}  // namespace plumb::harness
