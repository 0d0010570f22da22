#include "harness/bench/observed_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"

namespace plumb {
namespace {

constexpr int64_t kRows = 16, kHeads = 4, kColumns = 64;
constexpr int64_t kElements = int64_t{1} << 19;  // of one sampled tensor at most

Picks pick_rows(const Tensor& t) {
  const int64_t wide = std::max<int64_t>(1, t.dim(-1));
  return picks(t.dim(-2), std::clamp<int64_t>(kElements / wide, 2, kRows));
}

Picks pick_heads(const Tensor& t) { return t.rank() == 4 ? picks(t.dim(1), kHeads) : Picks{}; }

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

double value(const Tensor& host, int64_t i) {
  return load(host.dtype(), host.data<char>() + i * size_of(host.dtype()));
}

// max |q k^T| of host tensors [1, 1, rows, D] and [1, 1, S, D].
double largest_product(const Tensor& q, const Tensor& k) {
  const int64_t width = q.dim(3);
  double largest = 0;
  const Tensor wide_q = host_tensor(DType::f32, q.shape()),
               wide_k = host_tensor(DType::f32, k.shape());
  for (int64_t i = 0; i < q.numel(); ++i) wide_q.data<float>()[i] = static_cast<float>(value(q, i));
  for (int64_t i = 0; i < k.numel(); ++i) wide_k.data<float>()[i] = static_cast<float>(value(k, i));
  for (int64_t t = 0; t < q.dim(2); ++t) {
    for (int64_t s = 0; s < k.dim(2); ++s) {
      float sum = 0;
      for (int64_t d = 0; d < width; ++d) {
        sum += wide_q.data<float>()[t * width + d] * wide_k.data<float>()[s * width + d];
      }
      largest = std::max(largest, std::fabs(static_cast<double>(sum)));
    }
  }
  return largest;
}

Tensor one_head(const Tensor& t, int64_t head) { return t.slice(0, 0, 1).slice(1, head, head + 1); }

}  // namespace

ObservedOps::ObservedOps(Device& device, Device& oracle)
    : Ops(device.ops().device()), inner_(device.ops()), oracle_(oracle) {}  // whose the tensors are

void ObservedOps::forward(const Cost& cost, const std::function<void(Ops&)>& call) {
  cost_ += cost;
  records_.clear();
  inner_.observe(&records_);
  try {
    call(inner_);
    device().synchronize();
  } catch (...) {
    inner_.observe(nullptr);
    throw;
  }
  inner_.observe(nullptr);
  all_records_.insert(all_records_.end(), records_.begin(), records_.end());
}

void ObservedOps::judge(const SampledOp& sampled) {
  const OutputVerdict verdict = judge_sample(sampled, records_, oracle_);
  if (verdict.status == Status::pass || verdict.status == Status::blind) return;
  if (status_ == Status::pass) reason_ = text(name_of(records_.back().op), ": ", verdict.reason);
  status_ = worse(status_, verdict.status);
}

ObservedOps::Tensors ObservedOps::gathered(const Tensors& tensors, const Picks& rows,
                                           const Picks& heads) {
  Tensors out;
  for (const Tensor& t : tensors) {
    if (!t.defined() || t.rank() < 2) {
      out.push_back(gather(inner_, t));
      continue;
    }
    const Tensor some = picked(t, -2, rows);
    out.push_back(gather(inner_, t.rank() == 4 ? picked(some, 1, heads) : some));
  }
  return out;
}

void ObservedOps::row_op(OpId op, const Tensors& outputs, const Tensors& inputs, const Run& run,
                         bool exact) {
  const Picks rows = pick_rows(outputs[0]), heads = pick_heads(outputs[0]);
  SampledOp sampled;
  sampled.inputs = gathered(inputs, rows, heads);  // before the call: it may be in place
  forward(cost_of(op, outputs, inputs), [&](Ops& ops) { run(ops, outputs, inputs); });
  sampled.outputs = gathered(outputs, rows, heads);
  sampled.run = run;
  sampled.exact = exact;
  judge(sampled);
}

void ObservedOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                               double scale) {
  const Tensor all_ids = gather(inner_, ids);
  const Picks rows = picks(ids.numel(), kRows);
  const Tensor table = host_tensor(weight.dtype(), {rows.count, weight.dim(1)});
  const Tensor numbers = host_tensor(DType::i64, {rows.count});
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t id = all_ids.data<int64_t>()[rows[i]];
    device().download(table.data<char>() + i * table.bytes() / rows.count,
                      weight.slice(0, id, id + 1));
    numbers.data<int64_t>()[i] = i;
  }
  forward(cost_of(OpId::embedding, {out}, {ids, weight}),
          [&](Ops& ops) { ops.embedding(out, ids, weight, scale); });
  const Tensor flat = out.view({ids.numel(), weight.dim(1)});
  judge({{gather(inner_, picked(flat, 0, rows))},
         {numbers, table},
         [scale](Ops& ops, const Tensors& y, const Tensors& x) {
           ops.embedding(y[0], x[0], x[1], scale);
         },
         true});
}

void ObservedOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const RmsNormParams& params) {
  row_op(OpId::rms_norm, {out}, {x, weight},
         [params](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.rms_norm(y[0], a[0], a[1], params);
         });
}

void ObservedOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, double eps) {
  row_op(OpId::layer_norm, {out}, {x, weight, bias},
         [eps](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.layer_norm(y[0], a[0], a[1], a[2], eps);
         });
}

void ObservedOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const Tensor& bias) {
  const Picks rows = picks(x.dim(-2), kRows), columns = picks(weight.dim(0), kColumns);
  SampledOp sampled;
  sampled.inputs = {gather(inner_, picked(x, -2, rows)), gather(inner_, picked(weight, 0, columns)),
                    picked_columns(gather(inner_, bias), columns)};
  forward(cost_of(OpId::linear, {out}, {x, weight, bias}),
          [&](Ops& ops) { ops.linear(out, x, weight, bias); });
  sampled.outputs = {picked_columns(gather(inner_, picked(out, -2, rows)), columns)};
  sampled.run = [](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.linear(y[0], a[0], a[1], a[2]);
  };
  judge(sampled);
}

void ObservedOps::do_activation(const Tensor& out, const Tensor& x, Activation function) {
  row_op(OpId::activation, {out}, {x}, [function](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.activation(y[0], a[0], function);
  });
}

void ObservedOps::do_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  row_op(OpId::add, {out}, {a, b},
         [](Ops& ops, const Tensors& y, const Tensors& x) { ops.add(y[0], x[0], x[1]); });
}

void ObservedOps::do_mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  row_op(OpId::mul, {out}, {a, b},
         [](Ops& ops, const Tensors& y, const Tensors& x) { ops.mul(y[0], x[0], x[1]); });
}

void ObservedOps::do_scale(const Tensor& out, const Tensor& x, double factor,
                           ScaleOperation operation) {
  row_op(OpId::scale, {out}, {x},
         [factor, operation](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.scale(y[0], a[0], factor, operation);
         });
}

void ObservedOps::do_softmax(const Tensor& out, const Tensor& x) {
  row_op(OpId::softmax, {out}, {x},
         [](Ops& ops, const Tensors& y, const Tensors& a) { ops.softmax(y[0], a[0]); });
}

void ObservedOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  const Picks rows = picks(a.dim(2), kRows), heads = picks(a.dim(1), kHeads);
  const int64_t group = a.dim(1) / b.dim(1);
  std::vector<SampledOp> sampled(static_cast<size_t>(heads.count));
  for (int64_t i = 0; i < heads.count; ++i) {
    sampled[static_cast<size_t>(i)].inputs = {
        gather(inner_, picked(one_head(a, heads[i]), 2, rows)),
        gather(inner_, one_head(b, heads[i] / group))};
  }
  forward(cost_of(OpId::matmul, {out}, {a, b}),
          [&](Ops& ops) { ops.matmul(out, a, b, transpose_b); });
  for (int64_t i = 0; i < heads.count; ++i) {
    SampledOp& one = sampled[static_cast<size_t>(i)];
    one.outputs = {gather(inner_, picked(one_head(out, heads[i]), 2, rows))};
    one.run = [transpose_b](Ops& ops, const Tensors& y, const Tensors& x) {
      ops.matmul(y[0], x[0], x[1], transpose_b);
    };
    judge(one);
  }
}

void ObservedOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  row_op(OpId::masked_add, {out}, {x, mask},
         [](Ops& ops, const Tensors& y, const Tensors& a) { ops.masked_add(y[0], a[0], a[1]); });
}

void ObservedOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  const Picks rows = pick_rows(out), all_heads{0, 1, 0};
  SampledOp sampled;
  sampled.inputs = gathered({x}, rows, all_heads);
  forward(cost_of(OpId::repeat_heads, {out}, {x}), [&](Ops& ops) { ops.repeat_heads(out, x); });
  sampled.outputs = gathered({out}, rows, all_heads);
  sampled.run = [](Ops& ops, const Tensors& y, const Tensors& a) { ops.repeat_heads(y[0], a[0]); };
  sampled.exact = true;
  judge(sampled);
}

void ObservedOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                                  const Tensor& inv_freq, double attention_scaling) {
  const Picks rows = picks(positions.dim(1), kRows), no_heads;
  SampledOp sampled;
  sampled.inputs = {picked_columns(gather(inner_, positions), rows), gather(inner_, inv_freq)};
  forward(cost_of(OpId::rotary_table, {cos, sin}, {positions, inv_freq}),
          [&](Ops& ops) { ops.rotary_table(cos, sin, positions, inv_freq, attention_scaling); });
  sampled.outputs = gathered({cos, sin}, rows, no_heads);
  sampled.run = [attention_scaling](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.rotary_table(y[0], y[1], a[0], a[1], attention_scaling);
  };
  judge(sampled);
}

void ObservedOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos,
                            const Tensor& sin, RotaryStyle style) {
  row_op(OpId::rotary, {out}, {x, cos, sin}, [style](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.rotary(y[0], a[0], a[1], a[2], style);
  });
}

void ObservedOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  require(!mask.key_valid.defined() && !mask.explicit_mask.defined(), "bench",
          "causal_mask is sampled without padding and explicit masks only");
  const Picks rows = picks(out.dim(2), kRows), no_heads;
  forward(cost_of(OpId::causal_mask, {out}, {}), [&](Ops& ops) { ops.causal_mask(out, mask); });
  SampledOp sampled;
  sampled.inputs = {allowed_keys(mask, rows, out.dim(3))};
  sampled.outputs = gathered({out}, rows, no_heads);
  sampled.run = [fully_masked = mask.fully_masked](Ops& ops, const Tensors& y, const Tensors& a) {
    AttentionMask picked_mask;
    picked_mask.explicit_mask = a[0];
    picked_mask.fully_masked = fully_masked;
    ops.causal_mask(y[0], picked_mask);
  };
  sampled.exact = true;
  judge(sampled);
}

void ObservedOps::do_copy(const Tensor& out, const Tensor& x) {
  const auto run = [](Ops& ops, const Tensors& y, const Tensors& a) { ops.copy(y[0], a[0]); };
  row_op(OpId::copy, {out}, {x}, run, true);
}

void ObservedOps::do_cast(const Tensor& out, const Tensor& x) {
  row_op(OpId::cast, {out}, {x},
         [](Ops& ops, const Tensors& y, const Tensors& a) { ops.cast(y[0], a[0]); });
}

void ObservedOps::do_mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  const Picks rows = pick_rows(out), all_heads;
  SampledOp sampled;
  sampled.inputs = {gathered({x}, rows, all_heads)[0], picked_columns(gather(inner_, valid), rows)};
  forward(cost_of(OpId::mask_rows, {out}, {x, valid}),
          [&](Ops& ops) { ops.mask_rows(out, x, valid); });
  sampled.outputs = gathered({out}, rows, all_heads);
  sampled.run = [](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.mask_rows(y[0], a[0], a[1]);
  };
  sampled.exact = true;
  judge(sampled);
}

void ObservedOps::do_div(const Tensor& out, const Tensor& a, const Tensor& b) {
  row_op(OpId::div, {out}, {a, b},
         [](Ops& ops, const Tensors& y, const Tensors& in) { ops.div(y[0], in[0], in[1]); });
}

void ObservedOps::do_add_scalar(const Tensor& out, const Tensor& x, double value) {
  row_op(OpId::add_scalar, {out}, {x}, [value](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.add_scalar(y[0], a[0], value);
  });
}

// All of it: a row of the result is no row of x.
void ObservedOps::do_transpose(const Tensor& out, const Tensor& x) {
  SampledOp sampled;
  sampled.inputs = {gather(inner_, x)};
  forward(cost_of(OpId::transpose, {out}, {x}), [&](Ops& ops) { ops.transpose(out, x); });
  sampled.outputs = {gather(inner_, out)};
  sampled.run = [](Ops& ops, const Tensors& y, const Tensors& a) { ops.transpose(y[0], a[0]); };
  sampled.exact = true;
  judge(sampled);
}

void ObservedOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask,
                               double value) {
  const auto run = [value](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.mask_fill(y[0], a[0], a[1], value);
  };
  row_op(OpId::mask_fill, {out}, {x, mask}, run, true);
}

void ObservedOps::do_position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  SampledOp sampled;
  if (valid.defined()) sampled.inputs = {gather(inner_, valid)};
  forward(cost_of(OpId::position_ids, {out}, {valid}),
          [&](Ops& ops) { ops.position_ids(out, valid, offset); });
  sampled.outputs = {gather(inner_, out)};
  sampled.run = [offset](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.position_ids(y[0], a.empty() ? Tensor() : a[0], offset);
  };
  sampled.exact = true;
  judge(sampled);
}

void ObservedOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                                   const Tensor& weight, const Tensor& bias,
                                   const Tensor& state_before, std::optional<Activation> function) {
  // Some neighbouring channels, of one batch row.
  const int64_t channels = std::min(kColumns, x.dim(2));
  const auto of_rows = [&](const Tensor& t) {
    return gather(inner_, t.slice(0, 0, 1).slice(2, 0, channels));
  };
  const auto of_states = [&](const Tensor& t) {
    return t.defined() ? gather(inner_, t.slice(0, 0, 1).slice(1, 0, channels)) : Tensor();
  };
  SampledOp sampled;
  sampled.inputs = {of_rows(x), gather(inner_, weight.slice(0, 0, channels)),
                    bias.defined() ? gather(inner_, bias.slice(0, 0, channels)) : Tensor(),
                    of_states(state_before)};
  forward(cost_of(OpId::causal_conv1d, {out, state_after}, {x, weight, bias, state_before}),
          [&](Ops& ops) {
            ops.causal_conv1d(out, state_after, x, weight, bias, state_before, function);
          });
  sampled.outputs = {of_rows(out)};
  if (state_after.defined()) sampled.outputs.push_back(of_states(state_after));
  sampled.run = [function](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.causal_conv1d(y[0], y.size() > 1 ? y[1] : Tensor(), a[0], a[1], a[2], a[3], function);
  };
  judge(sampled);
}

void ObservedOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                              const SsdParams& params) {
  // The last head of one batch row.
  const int64_t head = in.x.dim(2) - 1, group = in.b.dim(2) - 1;
  const auto only = [&](const Tensor& t, int axis, int64_t index) {
    if (!t.defined()) return Tensor();
    const Tensor row = t.rank() > 1 ? t.slice(0, 0, 1) : t;
    return gather(inner_, row.slice(axis, index, index + 1));
  };
  SampledOp sampled;
  sampled.inputs = {only(in.x, 2, head),       only(in.dt, 2, head),    only(in.b, 2, group),
                    only(in.c, 2, group),      only(in.a_log, 0, head), only(in.d, 0, head),
                    only(in.dt_bias, 0, head), only(in.state, 1, head)};
  forward(cost_of(OpId::ssd_scan, {y, state_after},
                  {in.x, in.dt, in.b, in.c, in.a_log, in.d, in.dt_bias, in.state}),
          [&](Ops& ops) { ops.ssd_scan(y, state_after, in, params); });
  sampled.outputs = {only(y, 2, head)};
  sampled.axes = {"batch", "token", "head", "channel"};
  if (state_after.defined()) sampled.outputs.push_back(only(state_after, 1, head));
  sampled.run = [params](Ops& ops, const Tensors& outputs, const Tensors& a) {
    ops.ssd_scan(outputs[0], outputs.size() > 1 ? outputs[1] : Tensor(),
                 {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]}, params);
  };
  judge(sampled);
}

void ObservedOps::do_gated_rms_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                                    const Tensor& weight, const GatedRmsNormParams& params) {
  row_op(OpId::gated_rms_norm, {out}, {x, gate, weight},
         [params](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.gated_rms_norm(y[0], a[0], a[1], a[2], params);
         });
}

void ObservedOps::do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                                      Activation function) {
  row_op(OpId::gated_activation, {out}, {gate, up},
         [function](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.gated_activation(y[0], a[0], a[1], function);
         });
}

void ObservedOps::do_softcap(const Tensor& out, const Tensor& x, double cap) {
  row_op(OpId::softcap, {out}, {x},
         [cap](Ops& ops, const Tensors& y, const Tensors& a) { ops.softcap(y[0], a[0], cap); });
}

void ObservedOps::do_add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                                  const Tensor& residual, const Tensor& weight,
                                  const RmsNormParams& params) {
  row_op(OpId::add_rms_norm, {sum, out}, {x, residual, weight},
         [params](Ops& ops, const Tensors& y, const Tensors& a) {
           ops.add_rms_norm(y[0], y[1], a[0], a[1], a[2], params);
         });
}

void ObservedOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionMask& mask, const SdpaParams& params) {
  require(!mask.key_valid.defined() && !mask.explicit_mask.defined(), "bench",
          "sdpa is sampled without padding and explicit masks only");
  forward(cost_of_sdpa(out, q, k, v, mask),
          [&](Ops& ops) { ops.sdpa(out, q, k, v, mask, params); });
  const Picks rows = picks(q.dim(2), kRows), heads = picks(q.dim(1), kHeads);
  const int64_t group = q.dim(1) / k.dim(1);
  for (int64_t i = 0; i < heads.count; ++i) {
    const int64_t head = heads[i];
    SampledOp sampled;
    sampled.inputs = {gather(inner_, picked(one_head(q, head), 2, rows)),
                      gather(inner_, one_head(k, head / group)),
                      gather(inner_, one_head(v, head / group)),
                      allowed_keys(mask, rows, k.dim(2))};
    const Tensor one = out.slice(0, 0, 1).slice(2, head, head + 1);
    sampled.outputs = {gather(inner_, picked(one, 1, rows))};
    sampled.axes = {"batch", "token", "head", "channel"};
    sampled.max_abs_score = params.scale * largest_product(sampled.inputs[0], sampled.inputs[1]);
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

}  // namespace plumb
