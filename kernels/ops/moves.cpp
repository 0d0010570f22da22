// Lookups, sums by ids, moves and generated elements: checks, and calls as devices take them.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/ops/casts.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

int require_axis(const OpRow& row, const Tensor& x, int64_t axis) {
  require(axis >= 0 && axis < x.rank(), row.name, "axis is ", axis, ", x has shape ", x.shape());
  return static_cast<int>(axis);
}

Shape with_extent(Shape shape, int axis, int64_t extent) {
  shape.set(axis, extent);
  return shape;
}

// Along each axis but one.
void require_within(const OpRow& row, std::string_view name, const Tensor& ids, const Tensor& x,
                    int but = -1) {
  bool fits = ids.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == but || ids.dim(i) <= x.dim(i);
  require(fits, row.name, "ids has shape ", ids.shape(), ", beyond that of ", name, ", ",
          x.shape());
}

Tensor cut(const Tensor& x, const Shape& shape) {
  Tensor out = x;
  for (int i = 0; i < shape.rank(); ++i) out = out.slice(i, 0, shape[i]);
  return out;
}

}  // namespace

Number load_number(DType dtype, const void* address) {
  if (is_floating(dtype)) return {false, 0, load(dtype, address)};
  int64_t whole = 0;
  if (dtype == DType::i64) std::memcpy(&whole, address, sizeof whole);
  else whole = static_cast<int64_t>(load(dtype, address));
  return {true, whole, 0};
}

void store_number(DType dtype, void* address, const Number& value) {
  if (dtype == DType::f64) {
    const double x = value.whole ? static_cast<double>(value.i) : value.x;
    std::memcpy(address, &x, sizeof x);
  } else if (is_floating(dtype)) {
    store(dtype, address, casts::narrow(value));
  } else {
    const int64_t whole = casts::whole(dtype, value);
    std::memcpy(address, &whole, static_cast<size_t>(size_of(dtype)));  // its low bytes
  }
}

Tensor along(const Tensor& ids, int axis, const Shape& shape) {
  Tensor out = ids;
  for (int i = axis + 1; i < shape.rank(); ++i) out = out.with_axis(out.rank());
  return out.broadcast(shape);
}

void Ops::index_select(const Tensor& out, const Tensor& x, const Tensor& ids, int64_t axis) {
  const CheckedCall call = checked<OpId::index_select>(out, x, ids);
  const int at = require_axis(call.row, x, axis);
  require_shape(call.row.name, "out", out, with_extent(x.shape(), at, ids.dim(0)));
  MoveCall move{call.row, out, x};
  move.id_axis = at;
  move.given = ids;
  move.ids = along(ids, at, out.shape());
  run_move<&Ops::index_select>(call, {&move}, out, x, ids, axis);
}

void Ops::gather(const Tensor& out, const Tensor& x, const Tensor& ids, int64_t axis) {
  const CheckedCall call = checked<OpId::gather>(out, x, ids);
  const int at = require_axis(call.row, x, axis);
  require_within(call.row, "x", ids, x, at);
  require_shape(call.row.name, "out", out, ids.shape());
  MoveCall move{call.row, out, x};
  move.id_axis = at;
  move.given = move.ids = ids;
  run_move<&Ops::gather>(call, {&move}, out, x, ids, axis);
}

void Ops::index_add(const Tensor& out, const Tensor& x, const Tensor& ids, const Tensor& source,
                    int64_t axis) {
  const CheckedCall call = checked<OpId::index_add>(out, x, ids, source);
  const int at = require_axis(call.row, x, axis);
  require_shape(call.row.name, "source", source, with_extent(x.shape(), at, ids.dim(0)));
  require_shape(call.row.name, "out", out, x.shape());
  dispatch_index_add<&Ops::index_add>(
      call, {call.row, out, x, source, ids, along(ids, at, source.shape()), at}, out, x, ids,
      source, axis);
}

void Ops::scatter_add(const Tensor& out, const Tensor& x, const Tensor& ids, const Tensor& source,
                      int64_t axis) {
  const CheckedCall call = checked<OpId::scatter_add>(out, x, ids, source);
  const int at = require_axis(call.row, x, axis);
  require_within(call.row, "x", ids, x, at);
  require_within(call.row, "source", ids, source);
  require_shape(call.row.name, "out", out, x.shape());
  dispatch_index_add<&Ops::scatter_add>(
      call, {call.row, out, x, cut(source, ids.shape()), ids, ids, at}, out, x, ids, source, axis);
}

void Ops::concat(const Tensor& out, const Tensor& a, const Tensor& b, int64_t axis) {
  const CheckedCall call = checked<OpId::concat>(out, a, b);
  require(axis >= 0 && axis < a.rank(), "concat", "axis is ", axis, ", a has shape ", a.shape());
  const int at = static_cast<int>(axis);
  require(b.rank() == a.rank() && with_extent(b.shape(), at, a.dim(at)) == a.shape(), "concat",
          "b has shape ", b.shape(), ", a ", a.shape(), ": they may differ along axis ", axis,
          " alone");
  require_shape("concat", "out", out, with_extent(a.shape(), at, a.dim(at) + b.dim(at)));
  const MoveCall first{call.row, out.slice(at, 0, a.dim(at)), a},
      second{call.row, out.slice(at, a.dim(at), out.dim(at)), b};
  run_move<&Ops::concat>(call, {&first, &second}, out, a, b, axis);
}

void Ops::permute(const Tensor& out, const Tensor& x, const PerAxis& axes) {
  const CheckedCall call = checked<OpId::permute>(out, x);
  MoveCall move{call.row, out, x};
  std::vector<int64_t> expected;
  uint32_t seen = 0;
  for (int i = 0; i < x.rank(); ++i) {
    const bool known = axes[i] >= 0 && axes[i] < x.rank() && !(seen >> axes[i] & 1);
    require(known, "permute", "axis ", i, " of out is axis ", axes[i], " of x, whose shape is ",
            x.shape(), ": each must be there once");
    seen |= 1u << axes[i];
    expected.push_back(x.dim(static_cast<int>(axes[i])));
    if (i < out.rank()) move.axis(i).of = static_cast<int>(axes[i]);
  }
  require_shape("permute", "out", out, Shape(expected));
  run_move<&Ops::permute>(call, {&move}, out, x, axes);
}

void Ops::pad(const Tensor& out, const Tensor& x, const PerAxis& left, double value) {
  const CheckedCall call = checked<OpId::pad>(out, x);
  require(out.rank() == x.rank(), "pad", "out has shape ", out.shape(), ", x ", x.shape());
  MoveCall move{call.row, out, x};
  for (int i = 0; i < x.rank(); ++i) move.axis(i).first = -left[i];
  move.value = value;
  run_move<&Ops::pad>(call, {&move}, out, x, left, value);
}

void Ops::flip(const Tensor& out, const Tensor& x, Axes axes) {
  const CheckedCall call = checked<OpId::flip>(out, x);
  require_shape("flip", "out", out, x.shape());
  require(axes.set >> x.rank() == 0, "flip", "axes reach beyond the last of x, whose shape is ",
          x.shape());
  MoveCall move{call.row, out, x};
  for (int i = 0; i < x.rank(); ++i) {
    if (axes.has(i)) move.axis(i) = {i, x.dim(i) - 1, -1};
  }
  run_move<&Ops::flip>(call, {&move}, out, x, axes);
}

void Ops::roll(const Tensor& out, const Tensor& x, const PerAxis& shifts) {
  const CheckedCall call = checked<OpId::roll>(out, x);
  require_shape("roll", "out", out, x.shape());
  MoveCall move{call.row, out, x};
  for (int i = 0; i < x.rank(); ++i) {
    const int64_t extent = std::max<int64_t>(x.dim(i), 1);
    if (shifts[i] % extent != 0) move.axis(i) = {i, -(shifts[i] % extent), 1, true};
  }
  run_move<&Ops::roll>(call, {&move}, out, x, shifts);
}

void Ops::top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  const CheckedCall call = checked<OpId::top_k>(values, ids, x);
  require(call.extent('K') <= call.extent('C'), "top_k", "values has shape ", values.shape(),
          ", more than the ", call.extent('C'), " elements of a row of x");
  dispatch<&Ops::top_k, &DeviceOps::do_top_k>(call, values, ids, x, largest);
}

void Ops::fill(const Tensor& out, double value) {
  const CheckedCall call = checked<OpId::fill>(out);
  dispatch_generate<&Ops::fill>(call, {call.row, out, Generator::line, value, 0}, out, value);
}

void Ops::arange(const Tensor& out, double start, double step) {
  const CheckedCall call = checked<OpId::arange>(out);
  dispatch_generate<&Ops::arange>(call, {call.row, out, Generator::line, start, step}, out, start,
                                  step);
}

void Ops::uniform(const Tensor& out, const RandomStream& random) {
  const CheckedCall call = checked<OpId::uniform>(out);
  require(random.offset >= 0, "uniform", "offset is ", random.offset, ", must not be negative");
  dispatch_generate<&Ops::uniform>(call, {call.row, out, Generator::uniform, 0, 0, random}, out,
                                   random);
}

void Ops::normal(const Tensor& out, const RandomStream& random) {
  const CheckedCall call = checked<OpId::normal>(out);
  require(random.offset >= 0, "normal", "offset is ", random.offset, ", must not be negative");
  dispatch_generate<&Ops::normal>(call, {call.row, out, Generator::normal, 0, 0, random}, out,
                                  random);
}

}  // namespace plumb
