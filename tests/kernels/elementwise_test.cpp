// activation, softcap, gated_activation, scaled_add against their formulas; every op of one formula
// at infinity and other special values.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double activate(Activation function, double x) {
  switch (function) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh: {
      const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
      return x / (1 + std::exp(-2 * u));
    }
    case Activation::tanh: return std::tanh(x);
  }
  return 0;
}

// How far float32 arithmetic may be from activate(), relative to it, in units of 2^-24: a few
// roundings, and the rounding of the exponent's argument, which exp magnifies by its size.
double activation_units(Activation function, double x) {
  switch (function) {
    case Activation::gelu_tanh: return 8 + 6 * std::fabs(x + 0.044715 * x * x * x);
    case Activation::silu: return 8;
    case Activation::gelu: return 8;
    default: return 4;
  }
}

// Whether a device's own version of a fused op rounds at its output only.
bool rounds_once(const Ops& ops, OpId op, DType dtype) {
  return ops.contract(op, dtype).points == RoundingPoints::fused;
}

struct Case {
  std::unique_ptr<Device> device;
  DType dtype;
  Layout layout;
};

Case any_case() {
  Case c;
  c.device = open_test_device(GENERATE(from_range(test_devices())));
  c.dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  c.layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  return c;
}

TEST_CASE("div: by zero and by infinity as torch does") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  Guarded x(*device, dtype, {5}), y(*device, dtype, {5}), out(*device, dtype, {5});
  x.set({1, -1, 0, 1, kInfinity});
  y.set({0, 0, 0, kInfinity, kInfinity});
  const Values result = run(*device, {&out}, [&] { device->ops().div(out, x, y); })[0];
  require_close(result, {kInfinity, -kInfinity, std::nan(""), 0, std::nan("")}, Values(5, 0.0));
}

TEST_CASE("add: infinities and NaN pass through") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  Guarded x(*device, dtype, {4}), y(*device, dtype, {4}), out(*device, dtype, {4});
  x.set({kInfinity, -kInfinity, kInfinity, info(dtype).max});
  y.set({1, -1, -kInfinity, info(dtype).max});
  const Values result = run(*device, {&out}, [&] { device->ops().add(out, x, y); })[0];
  require_close(result, {kInfinity, -kInfinity, std::nan(""), kInfinity}, Values(4, 0.0));
}

TEST_CASE("an op whose row lacks f64 has it on the oracle alone") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Guarded wide(*device, DType::f64, {4});
  if (device->name() == "oracle") REQUIRE_NOTHROW(device->ops().softmax(wide, wide));
  else REQUIRE_THROWS_AS(device->ops().softmax(wide, wide), Unsupported);
}

TEST_CASE("every op of one formula: zeros, infinities, NaN and huge numbers as in float64") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const auto oracle = open_device("oracle", 1);
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const double most = info(dtype).max, least = 2 * smallest_step(dtype);
  Values special;
  for (const double v : {0.0, least, 0.5, 1.0, 1.5, 2.0, 3.0, 20.0, 200.0, most, kInfinity}) {
    special.insert(special.end(), {v, -v});
  }
  special.push_back(std::nan(""));
  Values a, b, c;
  for (const double x : special) {
    for (const double y : special) a.push_back(x), b.push_back(y);
  }
  for (size_t i = 0; i < a.size(); ++i) c.push_back(special[(i / 7) % special.size()]);
  const Shape shape{std::ssize(a)};
  const auto results = [&](Device& on, DType storage, OpId op) {
    const Guarded x = holding(on, has_condition(op) ? DType::boolean : storage, shape, a);
    const Guarded y = holding(on, storage, shape, b), z = holding(on, storage, shape, c);
    Guarded out(on, output_dtype(op, storage), shape);
    return run(on, {&out}, [&] {
      switch (row_of(op).operands.count) {
        case 2: return on.ops().unary(op, out, x, 0.5, 3);
        case 3: return on.ops().binary(op, out, x, y, 0.5);
        default: return on.ops().ternary(op, out, x, y, z);
      }
    })[0];
  };
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (!has_one_formula(op) || is_fused(op)) continue;
    INFO(name_of(op) << ' ' << name_of(dtype));
    Values exact = results(*oracle, DType::f64, op), bound;
    for (double& v : exact) {
      bound.push_back(std::fabs(v) * (rounding_unit(dtype) + 4 * kU32) + 4 * smallest_step(dtype));
      if (!std::isfinite(round_to(dtype, v))) v = round_to(dtype, v);
    }
    const Values y = results(*device, dtype, op);
    // A derivative that is 0 in float32 alone, far from 0, times infinity is NaN: in torch, too.
    for (size_t at = 0; row_of(op).is_backward() && at < b.size(); ++at) {
      const bool vanishes = std::fabs(a[at]) >= 200;
      if (vanishes && std::isinf(b[at]) && std::isnan(y[at])) exact[at] = y[at];
    }
    require_close(y, exact, bound);
  }
}

TEST_CASE("pow: the special cases of IEEE 754") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Values a = {-1, -1, 1, std::nan(""), -2, -2, -2, -kInfinity, -0.0, -0.0, 0, -8, -kInfinity};
  const Values b = {kInfinity, 0x1p30, std::nan(""), 0, 3, 2, 0.5, 3, -3, -2, 0, 1 / 3.0, 0.5};
  Values expected;
  for (size_t i = 0; i < a.size(); ++i) expected.push_back(std::pow(a[i], b[i]));
  const Shape shape{std::ssize(a)};
  const Guarded x = holding(*device, DType::f32, shape, a),
                y = holding(*device, DType::f32, shape, b);
  Guarded out(*device, DType::f32, shape);
  const Values result =
      run(*device, {&out}, [&] { device->ops().binary(OpId::pow, out, x, y); })[0];
  require_close(result, expected, Values(a.size(), 0.0));
}

TEST_CASE("activation: every 16-bit value, and float32 over its range") {
  const Case c = any_case();
  const auto function =
      GENERATE(Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh);
  Values x;
  if (c.dtype == DType::f32) {
    for (double v = 1e-30; v < 1e5; v *= 1.01) {
      x.push_back(round_to(DType::f32, v));
      x.push_back(round_to(DType::f32, -v));
    }
  } else {
    for (uint32_t code = 0; code < 0x10000; ++code) {
      const auto bits = static_cast<uint16_t>(code);
      const double value = load(c.dtype, &bits);
      if (std::isfinite(value)) x.push_back(value);
    }
  }
  const int64_t n = static_cast<int64_t>(x.size());
  Guarded in(*c.device, c.dtype, {1, 1, n}, c.layout), out(*c.device, c.dtype, {1, 1, n}, c.layout);
  in.set(x);
  const Values y =
      run(*c.device, {&out}, [&] { c.device->ops().activation(out, in, function); })[0];
  Values exact, model, bound;
  for (const double v : x) {
    exact.push_back(activate(function, v));
    model.push_back(round_to(c.dtype, exact.back()));
    const double units = activation_units(function, v) * kU32;
    // Results near the smallest float32 may flush on the way.
    bound.push_back(std::fabs(exact.back()) * (rounding_unit(c.dtype) + units) +
                    smallest_step(c.dtype) + 0x1p-120);
  }
  require_close(y, exact, bound);
  require_conforms(c.dtype, y, model, {});
}

TEST_CASE("activation: infinities and NaN as torch gives them") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const auto function =
      GENERATE(Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh);
  Guarded x(*device, dtype, {4}), out(*device, dtype, {4});
  x.set({kInfinity, -kInfinity, std::nan(""), 0});
  const Values y = run(*device, {&out}, [&] { device->ops().activation(out, x, function); })[0];
  const bool bounded = function == Activation::tanh;
  // x f(x) with f(-inf) = 0 is NaN.
  require_close(y, {bounded ? 1 : kInfinity, bounded ? -1 : std::nan(""), std::nan(""), 0},
                Values(4, 0.0));
}

TEST_CASE("gated_activation: rounds where its contract says, fused and composed") {
  const Case c = any_case();
  const auto function = GENERATE(Activation::silu, Activation::gelu, Activation::gelu_tanh);
  const bool fused = GENERATE(true, false);
  const Shape shape{2, 3, 1031};
  const Values g = random_values(c.dtype, shape.numel(), 3, 2),
               u = random_values(c.dtype, shape.numel(), 4);
  Guarded gate(*c.device, c.dtype, shape, c.layout), up(*c.device, c.dtype, shape);
  Guarded out(*c.device, c.dtype, shape, c.layout);
  gate.set(g);
  up.set(u);
  Ops& ops = c.device->ops();
  ops.set_fused(fused ? OpSet().set() : OpSet());
  const bool once = fused && rounds_once(ops, OpId::gated_activation, c.dtype);
  const Values y =
      run(*c.device, {&out}, [&] { ops.gated_activation(out, gate, up, function); })[0];
  Values exact, model, bound;
  for (size_t i = 0; i < g.size(); ++i) {
    const double activated = activate(function, g[i]);
    exact.push_back(activated * u[i]);
    model.push_back(round_to(c.dtype, (once ? activated : round_to(c.dtype, activated)) * u[i]));
    const double units = 2.1 * rounding_unit(c.dtype) + activation_units(function, g[i]) * kU32;
    bound.push_back(std::fabs(exact.back()) * units +
                    smallest_step(c.dtype) * (1 + std::fabs(u[i])));
  }
  require_close(y, exact, bound);
  require_conforms(c.dtype, y, model, {});
  out.set(u);  // in place
  ops.gated_activation(out, gate, out, function);
  REQUIRE(out.get() == y);
}

TEST_CASE("softcap: rounds where its contract says, fused and composed") {
  const Case c = any_case();
  const bool fused = GENERATE(true, false);
  const double cap = GENERATE(30.0, 50.0, 1.0, 30.1);  // the last in no 16-bit type
  const Shape shape{2, 3, 517};
  const Values x = random_values(c.dtype, shape.numel(), 5, 2 * cap);
  Guarded in(*c.device, c.dtype, shape, c.layout), out(*c.device, c.dtype, shape, c.layout);
  in.set(x);
  Ops& ops = c.device->ops();
  ops.set_fused(fused ? OpSet().set() : OpSet());
  const bool once = fused && rounds_once(ops, OpId::softcap, c.dtype);
  const Values y = run(*c.device, {&out}, [&] { ops.softcap(out, in, cap); })[0];
  Values exact, model, bound;
  for (const double v : x) {
    const auto r = [&](double z) { return round_to(c.dtype, z); };
    exact.push_back(std::tanh(v / cap) * cap);
    model.push_back(once ? r(exact.back()) : r(r(std::tanh(r(v / cap))) * cap));
    // |z tanh'(z)| <= |tanh z|: the first rounding weighs no more than the others.
    bound.push_back(std::fabs(exact.back()) * (3.2 * rounding_unit(c.dtype) + 4 * kU32) +
                    (1 + 2 * cap) * smallest_step(c.dtype));
  }
  require_close(y, exact, bound);
  require_conforms(c.dtype, y, model, {});
  REQUIRE_THROWS_AS(ops.softcap(out, in, 0), UsageError);
  out.set(x);
  ops.softcap(out, out, cap);
  REQUIRE(out.get() == y);
}

TEST_CASE("scaled_add: rounds the product, fused and composed") {
  const Case c = any_case();
  const bool fused = GENERATE(true, false);
  const Shape shape{2, 3, 517};
  const Values x = random_values(c.dtype, shape.numel(), 5),
               r = random_values(c.dtype, shape.numel(), 6);
  const Guarded in = holding(*c.device, c.dtype, shape, x, c.layout),
                residual = holding(*c.device, c.dtype, shape, r);
  Guarded out(*c.device, c.dtype, shape, c.layout);
  Ops& ops = c.device->ops();
  ops.set_fused(fused ? OpSet().set() : OpSet());
  const bool once = fused && rounds_once(ops, OpId::scaled_add, c.dtype);
  const Values y = run(*c.device, {&out}, [&] { ops.scaled_add(out, in, residual, 0.22); })[0];
  Values exact, model, bound;
  for (size_t i = 0; i < x.size(); ++i) {
    const double product = x[i] * static_cast<double>(0.22f);
    exact.push_back(product + r[i]);
    model.push_back(round_to(c.dtype, (once ? product : round_to(c.dtype, product)) + r[i]));
    bound.push_back((std::fabs(exact.back()) + std::fabs(product)) * rounding_unit(c.dtype) * 1.1 +
                    2 * smallest_step(c.dtype) + std::fabs(product) * 2 * kU32);
  }
  require_close(y, exact, bound);
  require_conforms(c.dtype, y, model, {});
}

// Extents of the output, and of inputs that go with it.
struct Broadcast {
  Shape out;
  std::vector<Shape> inputs;
};

// Each element once for each place that it is repeated at.
Values repeated(const Values& values, const Shape& from, const Shape& to) {
  Values out;
  for (int64_t i = 0; i < to.numel(); ++i) {
    int64_t rest = i, at = 0, step = 1;
    for (int axis = 1; axis <= to.rank(); ++axis) {
      const int64_t place = rest % to[-axis];
      rest /= to[-axis];
      if (axis > from.rank()) continue;
      if (from[-axis] > 1) at += place * step;
      step *= from[-axis];
    }
    out.push_back(values[static_cast<size_t>(at)]);
  }
  return out;
}

TEST_CASE("a broadcast gives the bits of its inputs written out, whatever is repeated") {
  const Case c = any_case();
  const Broadcast it = GENERATE(
      Broadcast{{3, 1031}, {{1031}, {3, 1}, {1}}}, Broadcast{{3, 16}, {{3, 16}, {1}, {1, 1}}},
      Broadcast{{2, 3, 64}, {{2, 1, 64}, {3, 1}, {2, 3, 64}}},
      Broadcast{{2, 3, 5, 1}, {{1, 5, 1}, {2, 1, 1, 1}, {3, 1, 1}}},
      Broadcast{{2, 3, 2, 3, 9}, {{2, 1, 2, 1, 9}, {1, 3, 1, 3, 9}, {2, 3, 2, 3, 1}}},
      Broadcast{{2, 0, 4}, {{4}, {1, 1, 1}, {2, 0, 1}}});
  std::vector<Guarded> narrow, wide;
  for (size_t i = 0; i < 3; ++i) {
    const Shape& shape = it.inputs[i];
    const Values x = random_values(c.dtype, shape.numel(), static_cast<uint32_t>(i), 1);
    narrow.push_back(holding(*c.device, c.dtype, shape, x, c.layout));
    wide.push_back(holding(*c.device, c.dtype, it.out, repeated(x, shape, it.out)));
  }
  const Values flags = {1, 0, 1, 1, 0, 0};
  const Shape of_flags = it.out.rank() == 2 && it.out[1] == 16 ? Shape{3, 1} : Shape{1};
  const Values some(flags.begin(), flags.begin() + of_flags.numel());
  const Guarded few = holding(*c.device, DType::boolean, of_flags, some);
  const Guarded many = holding(*c.device, DType::boolean, it.out, repeated(some, of_flags, it.out));
  Guarded out(*c.device, c.dtype, it.out, c.layout), is(*c.device, DType::boolean, it.out);
  Ops& ops = c.device->ops();
  const auto both = [&](Guarded& to, auto call) {
    const Values y = run(*c.device, {&to}, [&] { call(narrow, few); })[0];
    const Values expected = run(*c.device, {&to}, [&] { call(wide, many); })[0];
    require_close(y, expected, Values(expected.size(), 0.0));
  };
  const bool whole = it.out.numel() == 0;  // the inputs of two go together alone
  both(out, [&](auto& in, auto&) { ops.ternary(OpId::multiply_add, out, in[0], in[1], in[2]); });
  if (whole || it.out == Shape{2, 3, 5, 1}) return;
  both(out, [&](auto& in, auto&) { ops.binary(OpId::sub, out, in[0], in[1]); });
  both(is, [&](auto& in, auto&) { ops.binary(OpId::lt, is, in[1], in[0]); });
  both(out, [&](auto& in, auto& flag) { ops.ternary(OpId::where, out, flag, in[0], in[1]); });
}

TEST_CASE("elementwise ops refuse shapes and dtypes that disagree") {
  const auto device = open_test_device("cpu");
  Guarded a(*device, DType::f32, {2, 3}), b(*device, DType::f32, {3, 2}),
      c(*device, DType::bf16, {2, 3});
  Guarded whole(*device, DType::i32, {2, 3});
  REQUIRE_THROWS_WITH(
      device->ops().add(a, a, b),
      "[add] b has shape [3, 2], which does not go with [2, 3]: axis -1 has extents "
      "2 and 3, neither is 1");
  REQUIRE_THROWS_AS(device->ops().add(a, a, c), UsageError);
  REQUIRE_THROWS_AS(device->ops().div(whole, whole, whole), UsageError);
  const Tensor elsewhere = host_tensor(DType::f32, {2, 3});
  REQUIRE_THROWS_AS(device->ops().add(a, a, elsewhere), UsageError);
}

}  // namespace
}  // namespace plumb
