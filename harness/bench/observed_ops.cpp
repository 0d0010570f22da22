#include "harness/bench/observed_ops.h"

#include <algorithm>

#include "kernels/error.h"

namespace plumb {

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
                         BitRule bits) {
  const Picks rows = pick_rows(outputs[0]), heads = pick_heads(outputs[0]);
  SampledOp sampled;
  sampled.inputs = gathered(inputs, rows, heads);  // before the call: it may be in place
  forward(cost_of(op, outputs, inputs), [&](Ops& ops) { run(ops, outputs, inputs); });
  sampled.outputs = gathered(outputs, rows, heads);
  sampled.run = run;
  sampled.bits = bits;
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
         BitRule::exact});
}

void ObservedOps::do_rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                              const RmsNormParams& params) {
  row_op(
      OpId::rms_norm, {out}, {x, weight},
      [params](Ops& ops, const Tensors& y, const Tensors& a) {
        ops.rms_norm(y[0], a[0], a[1], params);
      },
      BitRule::scaled);
}

void ObservedOps::do_layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, double eps) {
  row_op(
      OpId::layer_norm, {out}, {x, weight, bias},
      [eps](Ops& ops, const Tensors& y, const Tensors& a) {
        ops.layer_norm(y[0], a[0], a[1], a[2], eps);
      },
      BitRule::scaled);
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

void ObservedOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  row_op(OpId::masked_add, {out}, {x, mask},
         [](Ops& ops, const Tensors& y, const Tensors& a) { ops.masked_add(y[0], a[0], a[1]); });
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

void ObservedOps::do_copy(const Tensor& out, const Tensor& x) {
  const auto run = [](Ops& ops, const Tensors& y, const Tensors& a) { ops.copy(y[0], a[0]); };
  row_op(OpId::copy, {out}, {x}, run, BitRule::exact);
}

void ObservedOps::do_copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b,
                               const Tensor& b) {
  const auto run = [](Ops& ops, const Tensors& y, const Tensors& x) {
    ops.copy_pair(y[0], x[0], y[1], x[1]);
  };
  row_op(OpId::copy, {out_a, out_b}, {a, b}, run, BitRule::exact);
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
  sampled.bits = BitRule::exact;
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

// A row of the result is a column of x.
void ObservedOps::do_transpose(const Tensor& out, const Tensor& x) {
  const Picks rows = pick_rows(out), heads = pick_heads(out), every_row;
  SampledOp sampled;
  sampled.inputs = {picked_columns(gathered({x}, every_row, heads)[0], rows)};
  forward(cost_of(OpId::transpose, {out}, {x}), [&](Ops& ops) { ops.transpose(out, x); });
  sampled.outputs = gathered({out}, rows, heads);
  sampled.run = [](Ops& ops, const Tensors& y, const Tensors& a) { ops.transpose(y[0], a[0]); };
  sampled.bits = BitRule::exact;
  judge(sampled);
}

void ObservedOps::do_mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask,
                               double value) {
  const auto run = [value](Ops& ops, const Tensors& y, const Tensors& a) {
    ops.mask_fill(y[0], a[0], a[1], value);
  };
  row_op(OpId::mask_fill, {out}, {x, mask}, run, BitRule::exact);
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
  sampled.bits = BitRule::exact;
  judge(sampled);
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
  row_op(
      OpId::add_rms_norm, {sum, out}, {x, residual, weight},
      [params](Ops& ops, const Tensors& y, const Tensors& a) {
        ops.add_rms_norm(y[0], y[1], a[0], a[1], a[2], params);
      },
      BitRule::scaled);
}

}  // namespace plumb
