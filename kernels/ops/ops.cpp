// Argument checks and dispatch, written once for all devices.
#include "kernels/ops/ops.h"

#include <array>
#include <utility>

#include "kernels/ops/attention_checks.h"
#include "kernels/ops/broadcast.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"
#include "kernels/ops/slots.h"

namespace plumb {
void Ops::force(const std::string& regex) { choice_.force(regex, device_.name()); }

void Ops::record(const CheckedCall& call) {
  std::array<int64_t, 3> sums{};
  size_t count = 0;
  for (const char letter : call.row.sums) sums[count++] = call.extent(letter);
  record(call.row.id, call.storage, {sums.data(), count});
}

void Ops::record(OpId op, DType storage, std::span<const int64_t> sums) {
  const std::optional<Contract> ran_with = std::exchange(ran_with_, std::nullopt);
  if (!records_) return;
  choice_.require_declared();
  OpRecord row{op, ran_with.value_or(contract(op, storage)), {}, choice_.chosen()};
  for (int64_t terms : sums) row.stages.push_back({terms, row.contract.accumulator});
  records_->push_back(std::move(row));
}

void Ops::embedding(const Tensor& out, const Tensor& ids, const Tensor& weight, double scale) {
  dispatch<&Ops::embedding, &DeviceOps::do_embedding>(checked<OpId::embedding>(out, ids, weight),
                                                      out, ids, weight, scale);
}

void Ops::rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const RmsNormParams& params) {
  dispatch<&Ops::rms_norm, &DeviceOps::do_rms_norm>(checked<OpId::rms_norm>(out, x, weight), out, x,
                                                    weight, params);
}

void Ops::layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) {
  dispatch<&Ops::layer_norm, &DeviceOps::do_layer_norm>(
      checked<OpId::layer_norm>(out, x, weight, bias), out, x, weight, bias, eps);
}

void Ops::linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  dispatch<&Ops::linear, &DeviceOps::do_linear>(checked<OpId::linear>(out, x, weight, bias), out, x,
                                                weight, bias);
}

void Ops::unary(OpId op, const Tensor& out, const Tensor& x, double number, double shift) {
  const CheckedCall call = check_as<kUnary>(op, device_, false, out, x);
  dispatch_map<&Ops::unary>(call,
                            {call.row, *call.row.formula, out, x, nullptr, nullptr, number, shift},
                            out, x, number, shift);
}

void Ops::binary(OpId op, const Tensor& out, const Tensor& a, const Tensor& b, double number) {
  const auto run = [&](const CheckedCall& call, const Tensor& x, const Tensor& y, bool broadcasts) {
    dispatch_map<&Ops::binary>(
        call, {call.row, *call.row.formula, out, x, &y, nullptr, number, 0, broadcasts}, out, a, b,
        number);
  };
  fits_detail::Found found;
  const bool fits = !gives_bool(op)   ? fits_as<kBinary>(op, found, device_, false, out, a, b)
                    : takes_bools(op) ? fits_as<kLogical>(op, found, device_, false, out, a, b)
                                      : fits_as<kComparison>(op, found, device_, false, out, a, b);
  if (fits) return run(checked_call(op, found), a, b, false);
  const BroadcastCall wide = broadcast(op, device_, out, std::array{&a, &b});
  run(wide.call, wide.inputs[0], wide.inputs[1], true);
}

void Ops::ternary(OpId op, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto run = [&](const CheckedCall& call, const Tensor& x, const Tensor& y, const Tensor& z,
                       bool broadcasts) {
    dispatch_map<&Ops::ternary>(
        call, {call.row, *call.row.formula, out, x, &y, &z, 0, 0, broadcasts}, out, a, b, c);
  };
  fits_detail::Found found;
  const bool fits = has_condition(op) ? fits_as<kWhere>(op, found, device_, false, out, a, b, c)
                                      : fits_as<kTernary>(op, found, device_, false, out, a, b, c);
  if (fits) return run(checked_call(op, found), a, b, c, false);
  const BroadcastCall wide = broadcast(op, device_, out, std::array{&a, &b, &c});
  run(wide.call, wide.inputs[0], wide.inputs[1], wide.inputs[2], true);
}

void Ops::cumsum(const Tensor& out, const Tensor& x, int64_t axis) {
  const CheckedCall call = checked<OpId::cumsum>(out, x);
  require(axis >= 0 && axis < x.rank(), "cumsum", "axis is ", axis, ", x has shape ", x.shape());
  dispatch<&Ops::cumsum, &DeviceOps::do_cumsum>(OpId::cumsum, call.storage,
                                                {x.dim(static_cast<int>(axis))}, out, x, axis);
}

void Ops::reduce(OpId op, const Tensor& out, const Tensor& x, Axes axes) {
  const OpRow& row = row_of(op);
  const CheckedCall call = takes_bools(op) ? check_as<kReductionToBool>(op, device_, false, out, x)
                           : gives_ids(op) ? check_as<kReductionToIndex>(op, device_, false, out, x)
                           : gives_total(op) ? check_as<kTotal>(op, device_, false, out, x)
                                             : check_as<kReduction>(op, device_, false, out, x);
  require(axes.set >> x.rank() == 0, row.name, "axes reach beyond the last of x, whose shape is ",
          x.shape());
  Shape kept = x.shape();
  std::vector<int64_t> left;
  int64_t count = 1;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (!axes.has(axis)) {
      left.push_back(x.dim(axis));
      continue;
    }
    count *= x.dim(axis);
    kept.set(axis, 1);
  }
  const Shape dropped = left.empty() ? Shape{1} : Shape(left);
  require(out.shape() == kept || out.shape() == dropped, row.name, "out has shape ", out.shape(),
          ", expected ", kept, " or ", dropped);
  const bool of_nothing = with_reduction(*row.reduction, []<class F>() { return F::kOfNothing; });
  require(count > 0 || of_nothing, row.name, "x has shape ", x.shape(),
          ": there is none among no elements");
  Tensor wide = out.shape() == kept ? out : left.empty() ? out.view(kept) : out;
  for (int axis = 0; wide.rank() < x.rank(); ++axis) {
    if (axes.has(axis)) wide = wide.with_axis(axis);
  }
  run_op<&Ops::reduce>(
      op,
      [&](DeviceOps& device) {
        device.do_reduce({row, wide, x, axes, count});
      },
      out, x, axes);
  const std::array<int64_t, 1> sums{count};
  record(op, call.storage, {sums.data(), row.bits == OpBits::exact ? 0u : 1u});
}

void Ops::activation(const Tensor& out, const Tensor& x, Activation function) {
  dispatch_map<&Ops::activation>(checked<OpId::activation>(out, x),
                                 {row_of(OpId::activation), formula_of(function), out, x}, out, x,
                                 function);
}

void Ops::scale(const Tensor& out, const Tensor& x, double factor, ScaleOperation operation) {
  const bool divides = operation == ScaleOperation::divide;
  const Formula formula = divides ? Formula::divide : Formula::multiply;
  dispatch_map<&Ops::scale>(checked<OpId::scale>(out, x),
                            {row_of(OpId::scale), formula, out, x, nullptr, nullptr, factor}, out,
                            x, factor, operation);
}

void Ops::softmax(const Tensor& out, const Tensor& x) {
  dispatch<&Ops::softmax, &DeviceOps::do_softmax>(checked<OpId::softmax>(out, x), out, x);
}

void Ops::matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  CheckedCall call =
      transpose_b ? checked<OpId::matmul, true>(out, a, b) : checked<OpId::matmul>(out, a, b);
  call.storage = sums_of(call.storage);
  GemmCall product{call.row, out, a, b, {}, {}, {}};
  product.params.transpose_b = transpose_b;
  run_op<&Ops::matmul>(
      OpId::matmul, [&](DeviceOps& device) { device.do_gemm(product); }, out, a, b, transpose_b);
  record(call);
}

void Ops::masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  const CheckedCall call = checked<OpId::masked_add>(out, x, mask);
  dispatch<&Ops::masked_add, &DeviceOps::do_masked_add>(
      call, out, x, mask.expand(0, x.dim(0)).expand(1, x.dim(1)));
}

void Ops::repeat_heads(const Tensor& out, const Tensor& x) {
  dispatch<&Ops::repeat_heads, &DeviceOps::do_repeat_heads>(checked<OpId::repeat_heads>(out, x),
                                                            out, x);
}

void Ops::rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                       const Tensor& inv_freq, double attention_scaling) {
  dispatch<&Ops::rotary_table, &DeviceOps::do_rotary_table>(
      checked<OpId::rotary_table>(cos, sin, positions, inv_freq), cos, sin, positions, inv_freq,
      attention_scaling);
}

void Ops::rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                 RotaryStyle style) {
  const CheckedCall call = checked<OpId::rotary>(out, x, cos, sin);
  const int64_t rotated = call.extent('R');
  require(rotated <= x.dim(3) && rotated % 2 == 0, "rotary", "cos has shape ", cos.shape(), ", x ",
          x.shape(), ": the rotated columns must be even and at most head_dim");
  dispatch<&Ops::rotary, &DeviceOps::do_rotary>(call, out, x, cos.expand(0, x.dim(0)),
                                                sin.expand(0, x.dim(0)), style);
}

void Ops::causal_mask(const Tensor& out, const AttentionMask& mask) {
  require_placed("causal_mask", device_, {{"out", out}});
  require_rank("causal_mask", "out", out, 4);
  require(out.dtype() == DType::boolean || is_floating(out.dtype()), "causal_mask", "out is ",
          name_of(out.dtype()), ", expected bool or a float dtype");
  if (mask.explicit_mask.defined()) {
    require_placed("causal_mask", device_, {{"mask", mask.explicit_mask}});
    require_dtype("causal_mask", "mask", mask.explicit_mask, DType::boolean);
    require_shape("causal_mask", "out", out, mask.explicit_mask.shape());
  } else {
    require(out.dim(1) == 1, "causal_mask", "out has shape ", out.shape(), ", expected one head");
  }
  require_mask("causal_mask", device_, mask, out.dim(0), out.dim(3));
  dispatch<&Ops::causal_mask, &DeviceOps::do_causal_mask>(
      OpId::causal_mask, is_floating(out.dtype()) ? out.dtype() : DType::f32, {}, out, mask);
}

void Ops::copy(const Tensor& out, const Tensor& x) {
  dispatch<&Ops::copy, &DeviceOps::do_copy>(checked<OpId::copy>(out, x), out, x);
}

void Ops::copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b, const Tensor& b) {
  const CheckedCall call = checked<OpId::copy>(out_a, a);
  checked<OpId::copy>(out_b, b);
  dispatch<&Ops::copy_pair, &DeviceOps::do_copy_pair>(call, out_a, a, out_b, b);
}

void Ops::cast(const Tensor& out, const Tensor& x) {
  CheckedCall call = checked<OpId::cast>(out, x);
  if (is_floating(out.dtype())) call.storage = out.dtype();
  dispatch<&Ops::cast, &DeviceOps::do_cast>(call, out, x);
}

void Ops::mask_rows(const Tensor& out, const Tensor& x, const Tensor& valid) {
  dispatch<&Ops::mask_rows, &DeviceOps::do_mask_rows>(checked<OpId::mask_rows>(out, x, valid), out,
                                                      x, valid);
}

void Ops::transpose(const Tensor& out, const Tensor& x) {
  dispatch<&Ops::transpose, &DeviceOps::do_transpose>(checked<OpId::transpose>(out, x), out, x);
}

void Ops::mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  dispatch<&Ops::mask_fill, &DeviceOps::do_mask_fill>(checked<OpId::mask_fill>(out, x, mask), out,
                                                      x, mask, value);
}

void Ops::position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  dispatch<&Ops::position_ids, &DeviceOps::do_position_ids>(checked<OpId::position_ids>(out, valid),
                                                            out, valid, offset);
}

void Ops::gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                           Activation function) {
  const CheckedCall call = checked<OpId::gated_activation>(out, gate, up);
  if (!runs_fused(OpId::gated_activation)) {
    return compose_gated_activation(out, gate, up, function);
  }
  dispatch_map<&Ops::gated_activation>(call, {call.row, gated_formula_of(function), out, gate, &up},
                                       out, gate, up, function);
}

void Ops::softcap(const Tensor& out, const Tensor& x, double cap) {
  const CheckedCall call = checked<OpId::softcap>(out, x);
  require(cap > 0, "softcap", "cap is ", cap, ", must be positive");
  if (!runs_fused(OpId::softcap)) return compose_softcap(out, x, cap);
  dispatch_map<&Ops::softcap>(call, {call.row, Formula::softcap, out, x, nullptr, nullptr, cap},
                              out, x, cap);
}

void Ops::scaled_add(const Tensor& out, const Tensor& x, const Tensor& residual, double factor) {
  const CheckedCall call = checked<OpId::scaled_add>(out, x, residual);
  if (!runs_fused(OpId::scaled_add)) return compose_scaled_add(out, x, residual, factor);
  dispatch_map<&Ops::scaled_add>(
      call, {call.row, Formula::scaled_add, out, x, &residual, nullptr, factor}, out, x, residual,
      factor);
}

void Ops::add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                       const Tensor& residual, const Tensor& weight, const RmsNormParams& params) {
  const CheckedCall call = checked<OpId::add_rms_norm>(sum, out, x, residual, weight);
  if (!runs_fused(OpId::add_rms_norm)) {
    return compose_add_rms_norm(sum, out, x, residual, weight, params);
  }
  dispatch<&Ops::add_rms_norm, &DeviceOps::do_add_rms_norm>(call, sum, out, x, residual, weight,
                                                            params);
}

void Ops::sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) {
  const CheckedCall call = checked<OpId::sdpa>(out, q, k, v);
  const int64_t batch = q.dim(0), heads = q.dim(1), queries = q.dim(2), keys = k.dim(2);
  require_attention("sdpa", device_, mask, params, {batch, heads, queries, keys}, call.storage);
  if (mask.position) {
    require_position("sdpa", device_, *mask.position);
    require_slots("sdpa", keys, mask.window, mask.position->now, queries);
    require(queries == 1 && !mask.causal && !mask.explicit_mask.defined() &&
                !(mask.window && mask.key_valid.defined()),
            "sdpa", "slots are for one query token, got ", queries,
            ", without causal, an explicit mask, or key_valid with a window");
    if (!reads_positions()) {
      const SlotRange seen = visible_slots(mask.position->now, mask.window);
      const auto visible = [&](const Tensor& t, int axis) {
        return t.defined() ? t.slice(axis, seen.begin, seen.end) : t;
      };
      AttentionMask rest;
      rest.fully_masked = mask.fully_masked;
      rest.key_valid = visible(mask.key_valid, 1);
      return sdpa(out, q, visible(k, 2), visible(v, 2), rest, params);
    }
  }
  if (!runs_fused(OpId::sdpa)) return compose_sdpa(out, q, k, v, mask, params);
  dispatch<&Ops::sdpa, &DeviceOps::do_sdpa>(call, out, q, k, v, mask, params);
}

}  // namespace plumb
