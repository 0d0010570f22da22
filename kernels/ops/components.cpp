// Argument checks and dispatch of ops that models use one by one rather than inside a block.
#include "kernels/ops/device_ops.h"
#include "kernels/ops/op_checks.h"

namespace plumb {

void Ops::div(const Tensor& out, const Tensor& a, const Tensor& b) {
  const DType storage = require_floats("div", device_, {{"a", a}, {"b", b}, {"out", out}});
  require_shape("div", "b", b, a.shape());
  require_shape("div", "out", out, a.shape());
  dispatch<&Ops::div, &DeviceOps::do_div>(OpId::div, storage, {}, out, a, b);
}

void Ops::add_scalar(const Tensor& out, const Tensor& x, double value) {
  const DType storage = require_floats("add_scalar", device_, {{"x", x}, {"out", out}});
  require_shape("add_scalar", "out", out, x.shape());
  dispatch<&Ops::add_scalar, &DeviceOps::do_add_scalar>(OpId::add_scalar, storage, {}, out, x,
                                                        value);
}

void Ops::transpose(const Tensor& out, const Tensor& x) {
  const DType storage = require_floats("transpose", device_, {{"x", x}, {"out", out}});
  require(x.rank() >= 2, "transpose", "x has shape ", x.shape(), ", expected rank 2 or more");
  Shape expected = x.shape();
  expected.set(-2, x.dim(-1));
  expected.set(-1, x.dim(-2));
  require_shape("transpose", "out", out, expected);
  dispatch<&Ops::transpose, &DeviceOps::do_transpose>(OpId::transpose, storage, {}, out, x);
}

void Ops::mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  const DType storage = require_floats("mask_fill", device_, {{"x", x}, {"out", out}});
  require_placed("mask_fill", device_, {{"mask", mask}});
  require_dtype("mask_fill", "mask", mask, DType::boolean);
  require_shape("mask_fill", "mask", mask, x.shape());
  require_shape("mask_fill", "out", out, x.shape());
  dispatch<&Ops::mask_fill, &DeviceOps::do_mask_fill>(OpId::mask_fill, storage, {}, out, x, mask,
                                                      value);
}

void Ops::position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  require_placed("position_ids", device_, {{"out", out}, {"valid", valid}});
  require_dtype("position_ids", "out", out, DType::i64);
  require_rank("position_ids", "out", out, 2);
  if (valid.defined()) {
    require_dtype("position_ids", "valid", valid, DType::boolean);
    require_shape("position_ids", "valid", valid, out.shape());
  }
  dispatch<&Ops::position_ids, &DeviceOps::do_position_ids>(OpId::position_ids, DType::f32, {}, out,
                                                            valid, offset);
}

}  // namespace plumb
