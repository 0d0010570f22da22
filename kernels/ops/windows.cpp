// Argument checks and dispatch of group norm, convolutions, pools and upsampling.
#include <algorithm>
#include <array>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

void require_at_least(const char* op, const char* name, const OfAxes& values, int64_t least) {
  require(std::ranges::min(values) >= least, op, name, " is ", values[0], " and ", values[1],
          ", must be at least ", least);
}

// What a window reaches over, and how many there are; `name` is the input's.
int64_t windows_of(const char* op, int axis, int64_t extent, int64_t taps, int64_t stride,
                   int64_t padding, int64_t dilation) {
  const int64_t reach = dilation * (taps - 1) + 1;
  require(taps > 0 && extent + 2 * padding >= reach, op, "a window of ", taps,
          " taps reaches over ", reach, " elements of axis ", axis, ", which has ", extent,
          " and a padding of ", padding);
  return (extent + 2 * padding - reach) / stride + 1;
}

int64_t transposed_extent(const char* op, int axis, int64_t extent, int64_t taps,
                          const ConvParams& p, size_t at) {
  require(p.output_padding[at] < std::max(p.stride[at], p.dilation[at]), op, "output_padding is ",
          p.output_padding[at], ", must be less than the stride of ", p.stride[at],
          " or the dilation of ", p.dilation[at]);
  const int64_t out = (extent - 1) * p.stride[at] - 2 * p.padding[at] +
                      p.dilation[at] * (taps - 1) + p.output_padding[at] + 1;
  require(taps > 0 && extent > 0 && out > 0, op, "axis ", axis, " has ", extent, " elements and ",
          taps, " taps, less a padding of ", p.padding[at], " on both sides: none are left");
  return out;
}

void require_channels(const ConvCall& call) {
  const char* op = call.row.name;
  const int64_t groups = call.params.groups, inputs = call.x.dim(1), outputs = call.out.dim(1);
  require(groups > 0 && inputs % groups == 0 && outputs % groups == 0, op, "groups is ", groups,
          ", must divide the ", inputs, " channels of x and the ", outputs, " of out");
  const int64_t of_group = call.transposed() ? call.outputs() : call.inputs();
  require(call.weight.dim(1) == of_group, op, "weight has shape ", call.weight.shape(),
          ", expected ", of_group, " along its second axis, the channels of one of ", groups,
          " groups");
}

void require_extents(const ConvCall& call) {
  const char* op = call.row.name;
  const ConvParams& p = call.params;
  require_at_least(op, "stride", p.stride, 1);
  require_at_least(op, "dilation", p.dilation, 1);
  require_at_least(op, "padding", p.padding, 0);
  require_at_least(op, "output_padding", p.output_padding, 0);
  require(call.transposed() || p.output_padding == OfAxes{}, op,
          "output_padding is of transposed convolutions only");
  for (int axis = 2; axis < 4; ++axis) {
    const auto at = static_cast<size_t>(axis - 2);
    const int64_t extent = call.x.dim(axis), taps = call.weight.dim(axis);
    const int64_t expected = call.transposed() ? transposed_extent(op, axis, extent, taps, p, at)
                                               : windows_of(op, axis, extent, taps, p.stride[at],
                                                            p.padding[at], p.dilation[at]);
    require(call.out.dim(axis) == expected, op, "out has extent ", call.out.dim(axis),
            " along the axis of ", axis == 2 ? "H" : "W", ", expected ", expected);
  }
}

}  // namespace

void Ops::group_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const GroupNormParams& params) {
  constexpr const char* kOp = "group_norm";
  const CheckedCall call = checked<OpId::group_norm>(out, x, weight, bias);
  require(x.rank() >= 2, kOp, "x has shape ", x.shape(), ", expected [B,C,*]");
  const int64_t channels = x.dim(1);
  for (const auto& [name, t] : {Named{"weight", weight}, Named{"bias", bias}}) {
    if (t.defined()) require_shape(kOp, name, t, {channels});
  }
  require(params.groups > 0 && channels % params.groups == 0, kOp, "groups is ", params.groups,
          ", must divide the ", channels, " channels of x");
  int64_t terms = channels / params.groups;
  for (int axis = 2; axis < x.rank(); ++axis) terms *= x.dim(axis);
  dispatch<&Ops::group_norm, &DeviceOps::do_group_norm>(
      OpId::group_norm, call.storage, {terms, terms}, out, x, weight, bias, params);
}

void Ops::convolve(OpId op, const Tensor& out, const Tensor& x, const Tensor& weight,
                   const Tensor& bias, const ConvParams& params) {
  const CheckedCall checked_call = [&] {
    switch (op) {
      case OpId::conv1d: return checked<OpId::conv1d>(out, x, weight, bias);
      case OpId::conv2d: return checked<OpId::conv2d>(out, x, weight, bias);
      case OpId::conv_transpose1d: return checked<OpId::conv_transpose1d>(out, x, weight, bias);
      default: return checked<OpId::conv_transpose2d>(out, x, weight, bias);
    }
  }();
  const bool one_axis = x.rank() == 3;
  const auto wide = [&](const Tensor& t) { return one_axis ? t.with_axis(2) : t; };
  ConvCall call{checked_call.row, wide(out), wide(x), wide(weight), bias, params};
  if (one_axis) {
    ConvParams& p = call.params;
    p.stride[0] = p.dilation[0] = 1;
    p.padding[0] = p.output_padding[0] = 0;
  }
  require_channels(call);
  require_extents(call);
  run_op<&Ops::convolve>(
      op, [&](DeviceOps& device) { device.do_convolve(call); }, out, x, weight, bias, params);
  const std::array<int64_t, 1> sums{call.terms()};
  record(op, checked_call.storage, sums);
}

void Ops::pool(OpId op, const Tensor& out, const Tensor& x, const PoolParams& params) {
  const CheckedCall checked_call = op == OpId::avg_pool2d ? checked<OpId::avg_pool2d>(out, x)
                                                          : checked<OpId::max_pool2d>(out, x);
  const char* name = checked_call.row.name;
  require_at_least(name, "kernel", params.kernel, 1);
  require_at_least(name, "stride", params.stride, 1);
  require_at_least(name, "padding", params.padding, 0);
  for (int axis = 2; axis < 4; ++axis) {
    const auto at = static_cast<size_t>(axis - 2);
    const int64_t taps = params.kernel[at], padding = params.padding[at];
    require(2 * padding <= taps, name, "padding is ", padding, ", at most half of the kernel's ",
            taps, " is allowed");
    const int64_t expected =
        windows_of(name, axis, x.dim(axis), taps, params.stride[at], padding, 1);
    require(out.dim(axis) == expected, name, "out has shape ", out.shape(), ", expected ", expected,
            " along axis ", axis);
  }
  run_op<&Ops::pool>(
      op,
      [&](DeviceOps& device) {
        device.do_pool({checked_call.row, out, x, params});
      },
      out, x, params);
  const std::array<int64_t, 1> sums{params.kernel[0] * params.kernel[1]};
  record(op, checked_call.storage, {sums.data(), op == OpId::avg_pool2d ? 1u : 0u});
}

void Ops::upsample_nearest2d(const Tensor& out, const Tensor& x) {
  const CheckedCall call = checked<OpId::upsample_nearest2d>(out, x);
  require(x.numel() > 0 || out.numel() == 0, "upsample_nearest2d", "x has shape ", x.shape(),
          ": no element is nearest");
  dispatch<&Ops::upsample_nearest2d, &DeviceOps::do_upsample_nearest2d>(call, out, x);
}

}  // namespace plumb
