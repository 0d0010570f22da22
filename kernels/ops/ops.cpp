// Argument checks and dispatch, written once for all devices.
#include "kernels/ops/ops.h"

#include <utility>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/op_checks.h"
#include "kernels/ops/slots.h"

namespace plumb {
namespace {

void require_copyable(Device& device, const Tensor& out, const Tensor& x) {
  require_placed("copy", device, {{"out", out}, {"x", x}});
  require_dtype("copy", "out", out, x.dtype());
  require_shape("copy", "out", out, x.shape());
}

void require_weight(const char* op, const Device& device, const Tensor& weight, DType storage,
                    bool narrow) {
  require_placed(op, device, {{"weight", weight}});
  narrow = narrow && storage == DType::f64 && is_floating(weight.dtype());
  if (!narrow) require_dtype(op, "weight", weight, storage);
}

}  // namespace

void Ops::force(const std::string& regex) { choice_.force(regex, device_.name()); }

void Ops::record(OpId op, DType storage, std::initializer_list<int64_t> sums) {
  const std::optional<Contract> ran_with = std::exchange(ran_with_, std::nullopt);
  if (!records_) return;
  choice_.require_declared();
  OpRecord row{op, ran_with.value_or(contract(op, storage)), {}, choice_.chosen()};
  for (int64_t terms : sums) row.stages.push_back({terms, row.contract.accumulator});
  records_->push_back(std::move(row));
}

void Ops::embedding(const Tensor& out, const Tensor& ids, const Tensor& weight, double scale) {
  const DType storage = require_floats("embedding", device_, {{"out", out}});
  require_weight("embedding", device_, weight, storage, takes_narrow_weights());
  require_placed("embedding", device_, {{"ids", ids}});
  require_dtype("embedding", "ids", ids, DType::i64);
  require_rank("embedding", "weight", weight, 2);
  require(out.rank() == ids.rank() + 1 && out.dim(-1) == weight.dim(1) &&
              out.numel() == ids.numel() * weight.dim(1),
          "embedding", "out has shape ", out.shape(), ", expected ids ", ids.shape(), " x ",
          weight.dim(1));
  dispatch<&Ops::embedding, &DeviceOps::do_embedding>(OpId::embedding, storage, {}, out, ids,
                                                      weight, scale);
}

void Ops::rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                   const RmsNormParams& params) {
  const DType storage =
      require_floats("rms_norm", device_, {{"x", x}, {"out", out}, {"weight", weight}});
  require_last("rms_norm", "weight", weight, x);
  require_shape("rms_norm", "out", out, x.shape());
  dispatch<&Ops::rms_norm, &DeviceOps::do_rms_norm>(OpId::rms_norm, storage, {x.dim(-1)}, out, x,
                                                    weight, params);
}

void Ops::layer_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps) {
  const DType storage = require_floats(
      "layer_norm", device_, {{"x", x}, {"out", out}, {"weight", weight}, {"bias", bias}});
  require_last("layer_norm", "weight", weight, x);
  if (bias.defined()) require_last("layer_norm", "bias", bias, x);
  require_shape("layer_norm", "out", out, x.shape());
  dispatch<&Ops::layer_norm, &DeviceOps::do_layer_norm>(
      OpId::layer_norm, storage, {x.dim(-1), x.dim(-1)}, out, x, weight, bias, eps);
}

void Ops::linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const DType storage = require_floats("linear", device_, {{"x", x}, {"out", out}, {"bias", bias}});
  require_weight("linear", device_, weight, storage, takes_narrow_weights());
  require_rank("linear", "weight", weight, 2);
  require(weight.dim(1) == x.dim(-1), "linear", "weight has shape ", weight.shape(),
          ", x's last axis has ", x.dim(-1));
  if (bias.defined()) require_shape("linear", "bias", bias, {weight.dim(0)});
  require_shape("linear", "out", out, with_last(x.shape(), weight.dim(0)));
  dispatch<&Ops::linear, &DeviceOps::do_linear>(OpId::linear, storage, {x.dim(-1)}, out, x, weight,
                                                bias);
}

void Ops::activation(const Tensor& out, const Tensor& x, Activation function) {
  const DType storage = require_floats("activation", device_, {{"x", x}, {"out", out}});
  require_shape("activation", "out", out, x.shape());
  dispatch<&Ops::activation, &DeviceOps::do_activation>(OpId::activation, storage, {}, out, x,
                                                        function);
}

void Ops::add(const Tensor& out, const Tensor& a, const Tensor& b) {
  const DType storage = require_floats("add", device_, {{"a", a}, {"b", b}, {"out", out}});
  require_shape("add", "b", b, a.shape());
  require_shape("add", "out", out, a.shape());
  dispatch<&Ops::add, &DeviceOps::do_add>(OpId::add, storage, {}, out, a, b);
}

void Ops::mul(const Tensor& out, const Tensor& a, const Tensor& b) {
  const DType storage = require_floats("mul", device_, {{"a", a}, {"b", b}, {"out", out}});
  require_shape("mul", "b", b, a.shape());
  require_shape("mul", "out", out, a.shape());
  dispatch<&Ops::mul, &DeviceOps::do_mul>(OpId::mul, storage, {}, out, a, b);
}

void Ops::scale(const Tensor& out, const Tensor& x, double factor, ScaleOperation operation) {
  const DType storage = require_floats("scale", device_, {{"x", x}, {"out", out}});
  require_shape("scale", "out", out, x.shape());
  dispatch<&Ops::scale, &DeviceOps::do_scale>(OpId::scale, storage, {}, out, x, factor, operation);
}

void Ops::softmax(const Tensor& out, const Tensor& x) {
  const DType storage = require_floats("softmax", device_, {{"x", x}, {"out", out}});
  require_shape("softmax", "out", out, x.shape());
  dispatch<&Ops::softmax, &DeviceOps::do_softmax>(OpId::softmax, storage, {x.dim(-1)}, out, x);
}

void Ops::matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  const DType storage = require_floats("matmul", device_, {{"a", a}, {"b", b}, {"out", out}});
  require_rank("matmul", "a", a, 4);
  require_rank("matmul", "b", b, 4);
  const int64_t inner = b.dim(transpose_b ? 3 : 2);
  const int64_t columns = b.dim(transpose_b ? 2 : 3);
  require(a.dim(3) == inner, "matmul", "a has shape ", a.shape(), ", b ", b.shape(),
          ": inner extents ", a.dim(3), " and ", inner);
  require(a.dim(0) == b.dim(0) && b.dim(1) > 0 && a.dim(1) % b.dim(1) == 0, "matmul", "a has ",
          a.dim(0), " x ", a.dim(1), " heads, b ", b.dim(0), " x ", b.dim(1));
  require_shape("matmul", "out", out, {a.dim(0), a.dim(1), a.dim(2), columns});
  dispatch<&Ops::matmul, &DeviceOps::do_matmul>(OpId::matmul, storage, {inner}, out, a, b,
                                                transpose_b);
}

void Ops::masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  const DType storage =
      require_floats("masked_add", device_, {{"x", x}, {"mask", mask}, {"out", out}});
  require_rank("masked_add", "x", x, 4);
  require_rank("masked_add", "mask", mask, 4);
  require_shape("masked_add", "out", out, x.shape());
  for (int axis = 0; axis < 2; ++axis) {
    require_broadcast("masked_add", "mask", axis, mask.dim(axis), x.dim(axis));
  }
  require(mask.dim(2) == x.dim(2) && mask.dim(3) == x.dim(3), "masked_add", "mask has shape ",
          mask.shape(), ", x ", x.shape());
  dispatch<&Ops::masked_add, &DeviceOps::do_masked_add>(
      OpId::masked_add, storage, {}, out, x, mask.expand(0, x.dim(0)).expand(1, x.dim(1)));
}

void Ops::repeat_heads(const Tensor& out, const Tensor& x) {
  const DType storage = require_floats("repeat_heads", device_, {{"x", x}, {"out", out}});
  require_rank("repeat_heads", "x", x, 4);
  require_rank("repeat_heads", "out", out, 4);
  require(x.dim(1) > 0 && out.dim(1) % x.dim(1) == 0, "repeat_heads", "out has ", out.dim(1),
          " heads, x ", x.dim(1));
  require_shape("repeat_heads", "out", out, {x.dim(0), out.dim(1), x.dim(2), x.dim(3)});
  dispatch<&Ops::repeat_heads, &DeviceOps::do_repeat_heads>(OpId::repeat_heads, storage, {}, out,
                                                            x);
}

void Ops::rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                       const Tensor& inv_freq, double attention_scaling) {
  const DType storage = require_floats("rotary_table", device_, {{"cos", cos}, {"sin", sin}});
  require_placed("rotary_table", device_, {{"positions", positions}, {"inv_freq", inv_freq}});
  require_dtype("rotary_table", "positions", positions, DType::i64);
  require_dtype("rotary_table", "inv_freq", inv_freq,
                storage == DType::f64 ? DType::f64 : DType::f32);
  require_rank("rotary_table", "positions", positions, 2);
  require_rank("rotary_table", "inv_freq", inv_freq, 1);
  const Shape expected{positions.dim(0), positions.dim(1), 2 * inv_freq.dim(0)};
  require_shape("rotary_table", "cos", cos, expected);
  require_shape("rotary_table", "sin", sin, expected);
  dispatch<&Ops::rotary_table, &DeviceOps::do_rotary_table>(
      OpId::rotary_table, storage, {}, cos, sin, positions, inv_freq, attention_scaling);
}

void Ops::rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                 RotaryStyle style) {
  const DType storage =
      require_floats("rotary", device_, {{"x", x}, {"out", out}, {"cos", cos}, {"sin", sin}});
  require_rank("rotary", "x", x, 4);
  require_rank("rotary", "cos", cos, 3);
  require_shape("rotary", "out", out, x.shape());
  require_shape("rotary", "sin", sin, cos.shape());
  require_broadcast("rotary", "cos", 0, cos.dim(0), x.dim(0));
  require(cos.dim(1) == x.dim(2) && cos.dim(2) <= x.dim(3) && cos.dim(2) % 2 == 0, "rotary",
          "cos has shape ", cos.shape(), ", x ", x.shape(),
          ": tokens must agree and the rotated columns be even and at most head_dim");
  dispatch<&Ops::rotary, &DeviceOps::do_rotary>(
      OpId::rotary, storage, {}, out, x, cos.expand(0, x.dim(0)), sin.expand(0, x.dim(0)), style);
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
  require_copyable(device_, out, x);
  dispatch<&Ops::copy, &DeviceOps::do_copy>(
      OpId::copy, is_floating(x.dtype()) ? x.dtype() : DType::f32, {}, out, x);
}

void Ops::copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b, const Tensor& b) {
  require_copyable(device_, out_a, a);
  require_copyable(device_, out_b, b);
  dispatch<&Ops::copy_pair, &DeviceOps::do_copy_pair>(
      OpId::copy, is_floating(a.dtype()) ? a.dtype() : DType::f32, {}, out_a, a, out_b, b);
}

void Ops::gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                           Activation function) {
  const DType storage =
      require_floats("gated_activation", device_, {{"gate", gate}, {"up", up}, {"out", out}});
  require_shape("gated_activation", "up", up, gate.shape());
  require_shape("gated_activation", "out", out, gate.shape());
  if (!runs_fused(OpId::gated_activation)) {
    return compose_gated_activation(out, gate, up, function);
  }
  dispatch<&Ops::gated_activation, &DeviceOps::do_gated_activation>(OpId::gated_activation, storage,
                                                                    {}, out, gate, up, function);
}

void Ops::softcap(const Tensor& out, const Tensor& x, double cap) {
  const DType storage = require_floats("softcap", device_, {{"x", x}, {"out", out}});
  require_shape("softcap", "out", out, x.shape());
  require(cap > 0, "softcap", "cap is ", cap, ", must be positive");
  if (!runs_fused(OpId::softcap)) return compose_softcap(out, x, cap);
  dispatch<&Ops::softcap, &DeviceOps::do_softcap>(OpId::softcap, storage, {}, out, x, cap);
}

void Ops::add_rms_norm(const Tensor& sum, const Tensor& out, const Tensor& x,
                       const Tensor& residual, const Tensor& weight, const RmsNormParams& params) {
  const DType storage = require_floats(
      "add_rms_norm", device_,
      {{"x", x}, {"residual", residual}, {"sum", sum}, {"out", out}, {"weight", weight}});
  require_last("add_rms_norm", "weight", weight, x);
  require_shape("add_rms_norm", "residual", residual, x.shape());
  require_shape("add_rms_norm", "sum", sum, x.shape());
  require_shape("add_rms_norm", "out", out, x.shape());
  if (!runs_fused(OpId::add_rms_norm)) {
    return compose_add_rms_norm(sum, out, x, residual, weight, params);
  }
  dispatch<&Ops::add_rms_norm, &DeviceOps::do_add_rms_norm>(
      OpId::add_rms_norm, storage, {x.dim(-1)}, sum, out, x, residual, weight, params);
}

void Ops::sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) {
  const DType storage =
      require_floats("sdpa", device_, {{"q", q}, {"k", k}, {"v", v}, {"out", out}});
  require_rank("sdpa", "q", q, 4);
  require_rank("sdpa", "k", k, 4);
  require_rank("sdpa", "v", v, 4);
  const int64_t batch = q.dim(0), heads = q.dim(1), queries = q.dim(2), keys = k.dim(2);
  require(k.dim(0) == batch && k.dim(1) > 0 && heads % k.dim(1) == 0 && k.dim(3) == q.dim(3),
          "sdpa", "q has shape ", q.shape(), ", k ", k.shape(),
          ": batch and head_dim must agree, heads be a multiple of k's");
  require(v.dim(0) == batch && v.dim(1) == k.dim(1) && v.dim(2) == keys, "sdpa", "v has shape ",
          v.shape(), ", k ", k.shape());
  require_shape("sdpa", "out", out, {batch, queries, heads, v.dim(3)});
  require(keys > 0, "sdpa", "no keys: k has shape ", k.shape());
  require(!params.softcap || *params.softcap > 0, "sdpa", "softcap is ", params.softcap.value_or(0),
          ", must be positive");
  require_mask("sdpa", device_, mask, batch, keys);
  if (mask.position) {
    require_position("sdpa", device_, *mask.position);
    require_slots("sdpa", keys, mask.window, mask.position->now, queries);
    require(queries == 1 && !mask.causal && !mask.explicit_mask.defined() &&
                !(mask.window && mask.key_valid.defined()),
            "sdpa", "slots are for one query token, got ", queries,
            ", without causal, an explicit mask, or key_valid beside a window");
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
  if (mask.explicit_mask.defined()) {
    const Tensor& m = mask.explicit_mask;
    require_placed("sdpa", device_, {{"mask", m}});
    require_rank("sdpa", "mask", m, 4);
    require(m.dtype() == DType::boolean || m.dtype() == storage, "sdpa", "mask is ",
            name_of(m.dtype()), ", expected bool or ", name_of(storage));
    require_broadcast("sdpa", "mask", 0, m.dim(0), batch);
    require_broadcast("sdpa", "mask", 1, m.dim(1), heads);
    require(m.dim(2) == queries && m.dim(3) == keys, "sdpa", "mask has shape ", m.shape(),
            ", expected [.., .., ", queries, ", ", keys, ']');
    require(!mask.causal && !mask.window && !mask.key_valid.defined(), "sdpa",
            "an explicit mask replaces causal, window and key_valid, which must be off");
  }
  if (!runs_fused(OpId::sdpa)) return compose_sdpa(out, q, k, v, mask, params);
  dispatch<&Ops::sdpa, &DeviceOps::do_sdpa>(OpId::sdpa, storage, {q.dim(3), keys, keys}, out, q, k,
                                            v, mask, params);
}

}  // namespace plumb
