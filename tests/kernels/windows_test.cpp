// Convolutions, pools, upsampling and group norm against torch (tests/python/test_op_windows.py),
// in every layout; what depends on order, NaN and threads; and what is refused.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/ops/window_calls.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

struct TorchCase {
  const char* op;
  std::vector<int64_t> x, weight;
  OfAxes stride, padding, dilation, output_padding;
  int64_t groups;
  std::vector<int64_t> out;
  Values values;
};

const std::vector<TorchCase>& torch_cases() {
  static const std::vector<TorchCase> cases = {
#include "tests/kernels/torch_windows.inc"
  };
  return cases;
}

// Of the cases: test_op_windows.py.
Values whole(const Shape& shape, int64_t step, int64_t count) {
  Values out;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    out.push_back(static_cast<double>(i * step % count - count / 2));
  }
  return out;
}

OpId op_named(std::string_view name) {
  for (int i = 0; i < kOpCount; ++i) {
    if (name_of(static_cast<OpId>(i)) == name) return static_cast<OpId>(i);
  }
  throw std::logic_error("no such op");
}

// The case's call of operands in this dtype and layout.
Values result_of(Device& device, const TorchCase& it, DType dtype, Layout layout) {
  const OpId op = op_named(it.op);
  const Shape x_shape(it.x), weight_shape(it.weight);
  Guarded x = holding(device, dtype, x_shape, whole(x_shape, 7, 11), layout);
  Guarded out(device, dtype, Shape(it.out), layout);
  const int64_t channels = it.out[1];
  Guarded bias = holding(device, dtype, {channels}, whole({channels}, 1, 3));
  return run(device, {&out}, [&] {
    if (op == OpId::upsample_nearest2d) return device.ops().upsample_nearest2d(out, x);
    if (is_pool(op)) {
      const OfAxes kernel{it.weight[0], it.weight[1]};
      return device.ops().pool(op, out, x, {kernel, it.stride, it.padding, it.groups != 0});
    }
    if (op == OpId::group_norm) {
      Guarded weight = holding(device, dtype, {channels}, whole({channels}, 5, 7));
      return device.ops().group_norm(out, x, weight, bias, {it.groups, 1e-5});
    }
    Guarded weight = holding(device, dtype, weight_shape, whole(weight_shape, 5, 7), layout);
    device.ops().convolve(op, out, x, weight, bias,
                          {it.stride, it.padding, it.dilation, it.output_padding, it.groups});
  })[0];
}

TEST_CASE("windows: what torch computes") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  for (const TorchCase& it : torch_cases()) {
    INFO(it.op << " of " << Shape(it.x) << ", " << Shape(it.weight));
    Values bound;
    for (const double v : it.values) bound.push_back(rounding_unit(dtype) * std::fabs(v) + 0x1p-20);
    require_close(result_of(*device, it, dtype, layout), it.values, bound);
  }
}

TEST_CASE("pools: NaN is the largest, padding is not, a plane of minus infinity stays it") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Values x = {std::nan(""), 1, -3, -4, -kInfinity, -kInfinity, -5, -6, 2};
  Guarded in = holding(*device, DType::f32, {1, 1, 1, 9}, x);
  Guarded out(*device, DType::f32, {1, 1, 1, 5});
  const PoolParams params{{1, 2}, {1, 2}, {0, 1}, true};
  const auto of = [&](OpId op) {
    return run(*device, {&out}, [&] { device->ops().pool(op, out, in, params); })[0];
  };
  const Values largest = of(OpId::max_pool2d), mean = of(OpId::avg_pool2d);
  CHECK(std::isnan(largest[0]));
  CHECK(Values(largest.begin() + 1, largest.end()) == Values{1, -4, -5, 2});
  CHECK(std::isnan(mean[0]));
  CHECK(Values(mean.begin() + 1, mean.end()) == Values{-1, -kInfinity, -kInfinity, -2});
}

TEST_CASE(
    "convolutions: a batch row has the bits that it has alone, without taps there is the bias") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Shape shape{3, 4, 12, 17}, made{3, 20, 12, 17};
  Guarded x = holding(*device, dtype, shape, random_values(dtype, shape.numel(), 1));
  Guarded weight = holding(*device, dtype, {20, 2, 3, 3}, random_values(dtype, 360, 2));
  Guarded out(*device, dtype, made), alone(*device, dtype, {1, 20, 12, 17});
  ConvParams params;
  params.padding = {1, 1};
  params.groups = 2;
  Ops& ops = device->ops();
  const Values all =
      run(*device, {&out}, [&] { ops.convolve(OpId::conv2d, out, x, weight, {}, params); })[0];
  const Tensor last = x.tensor().slice(0, 2, 3);
  const Values one = run(*device, {&alone},
                         [&] { ops.convolve(OpId::conv2d, alone, last, weight, {}, params); })[0];
  CHECK(one == Values(all.end() - std::ssize(one), all.end()));

  Guarded none(*device, dtype, {1, 0, 2, 2}), nothing(*device, dtype, {3, 0, 1, 1});
  Guarded biased(*device, dtype, {1, 3, 2, 2});
  Guarded bias = holding(*device, dtype, {3}, {1, 2, 3});
  const Values added = run(*device, {&biased},
                           [&] { ops.convolve(OpId::conv2d, biased, none, nothing, bias, {}); })[0];
  CHECK(added == Values{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
}

TEST_CASE("windows that do not fit are refused, with what they have and what fits") {
  const auto device = open_test_device("cpu");
  Ops& ops = device->ops();
  const auto of = [&](const Shape& shape) { return device->allocate(DType::f32, shape); };
  const Tensor x = of({1, 4, 5, 6}), weight = of({6, 2, 3, 3});
  const auto refused = [](const std::string& words, const std::function<void()>& op) {
    REQUIRE_THROWS_AS(op(), UsageError);
    REQUIRE_THROWS_WITH(op(), words);
  };
  const auto conv = [&](const Shape& out, const ConvParams& params) {
    return [&, out, params] { ops.convolve(OpId::conv2d, of(out), x, weight, {}, params); };
  };
  ConvParams two{{1, 1}, {}, {1, 1}, {}, 2};
  CHECK_NOTHROW(conv({1, 6, 3, 4}, two)());
  refused("[conv2d] out has extent 4 along the axis of H, expected 3", conv({1, 6, 4, 4}, two));
  refused("[conv2d] groups is 3, must divide the 4 channels of x and the 6 of out",
          conv({1, 6, 3, 4}, {{1, 1}, {}, {1, 1}, {}, 3}));
  refused(
      "[conv2d] weight has shape [6, 2, 3, 3], expected 4 along its second axis, the channels of "
      "one of 1 groups",
      conv({1, 6, 3, 4}, {}));
  refused("[conv2d] stride is 1 and 0, must be at least 1",
          conv({1, 6, 3, 4}, {{1, 0}, {}, {1, 1}, {}, 2}));
  refused("[conv2d] output_padding is of transposed convolutions only",
          conv({1, 6, 3, 4}, {{1, 1}, {}, {1, 1}, {0, 1}, 2}));
  refused(
      "[conv2d] a window of 3 taps reaches over 7 elements of axis 2, which has 5 and a padding "
      "of 0",
      conv({1, 6, 3, 4}, {{1, 1}, {}, {3, 1}, {}, 2}));
  refused(
      "[conv_transpose2d] output_padding is 2, must be less than the stride of 2 or the dilation "
      "of 1",
      [&] {
        ops.convolve(OpId::conv_transpose2d, of({1, 4, 13, 8}), x, of({4, 2, 3, 3}), {},
                     {{2, 1}, {}, {1, 1}, {2, 0}, 2});
      });
  refused("[max_pool2d] padding is 2, at most half of the kernel's 3 is allowed", [&] {
    ops.pool(OpId::max_pool2d, of({1, 4, 5, 6}), x, {{3, 3}, {1, 1}, {2, 1}});
  });
  refused("[avg_pool2d] out has shape [1, 4, 5, 6], expected 4 along axis 3", [&] {
    ops.pool(OpId::avg_pool2d, of({1, 4, 5, 6}), x, {{1, 3}, {1, 1}, {}});
  });
  refused("[upsample_nearest2d] x has shape [1, 4, 0, 6]: no element is nearest", [&] {
    ops.upsample_nearest2d(x, of({1, 4, 0, 6}));
  });
  refused("[group_norm] groups is 3, must divide the 4 channels of x", [&] {
    ops.group_norm(x, x, {}, {}, {3, 1e-5});
  });
  refused("[group_norm] weight has shape [6], expected [4]", [&] {
    ops.group_norm(x, x, of({6}), {}, {2, 1e-5});
  });
}

}  // namespace
}  // namespace plumb
