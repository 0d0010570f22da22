// Argument checks and dispatch of ops that models use one by one rather than inside a block.
#include "kernels/op_checks.h"

namespace plumb {

void Ops::div(const Tensor& out, const Tensor& a, const Tensor& b) {
  const DType storage = require_floats("div", device_, {{"a", a}, {"b", b}, {"out", out}});
  require_shape("div", "b", b, a.shape());
  require_shape("div", "out", out, a.shape());
  choice_.begin(OpId::div);
  do_div(out, a, b);
  record(OpId::div, storage, {});
}

void Ops::add_scalar(const Tensor& out, const Tensor& x, double value) {
  const DType storage = require_floats("add_scalar", device_, {{"x", x}, {"out", out}});
  require_shape("add_scalar", "out", out, x.shape());
  choice_.begin(OpId::add_scalar);
  do_add_scalar(out, x, value);
  record(OpId::add_scalar, storage, {});
}

void Ops::transpose(const Tensor& out, const Tensor& x) {
  const DType storage = require_floats("transpose", device_, {{"x", x}, {"out", out}});
  require(x.rank() >= 2, "transpose", "x has shape ", x.shape(), ", expected rank 2 or more");
  Shape expected = x.shape();
  expected.set(-2, x.dim(-1));
  expected.set(-1, x.dim(-2));
  require_shape("transpose", "out", out, expected);
  choice_.begin(OpId::transpose);
  do_transpose(out, x);
  record(OpId::transpose, storage, {});
}

void Ops::mask_fill(const Tensor& out, const Tensor& x, const Tensor& mask, double value) {
  const DType storage = require_floats("mask_fill", device_, {{"x", x}, {"out", out}});
  require_placed("mask_fill", device_, {{"mask", mask}});
  require_dtype("mask_fill", "mask", mask, DType::boolean);
  require_shape("mask_fill", "mask", mask, x.shape());
  require_shape("mask_fill", "out", out, x.shape());
  choice_.begin(OpId::mask_fill);
  do_mask_fill(out, x, mask, value);
  record(OpId::mask_fill, storage, {});
}

void Ops::position_ids(const Tensor& out, const Tensor& valid, int64_t offset) {
  require_placed("position_ids", device_, {{"out", out}, {"valid", valid}});
  require_dtype("position_ids", "out", out, DType::i64);
  require_rank("position_ids", "out", out, 2);
  if (valid.defined()) {
    require_dtype("position_ids", "valid", valid, DType::boolean);
    require_shape("position_ids", "valid", valid, out.shape());
  }
  choice_.begin(OpId::position_ids);
  do_position_ids(out, valid, offset);
  record(OpId::position_ids, DType::f32, {});
}

}  // namespace plumb
