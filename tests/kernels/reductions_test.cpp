// Every reduction against its definition written out, along every set of axes; and what of no
// elements, of NaN, of infinities and of equal elements comes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double place_of(const Values& x, bool (*is_before)(double, double)) {
  const auto nan = std::ranges::find_if(x, [](double v) { return std::isnan(v); });
  if (nan != x.end()) return static_cast<double>(nan - x.begin());
  return static_cast<double>(std::min_element(x.begin(), x.end(), is_before) - x.begin());
}

// By definition, in float64, and what its error is measured in.
struct Expected {
  double value, scale;
};
Expected reduced(OpId op, const Values& x) {
  const auto sum = [&](auto f) {
    return std::accumulate(x.begin(), x.end(), 0.0, [&](double s, double v) { return s + f(v); });
  };
  const auto count = static_cast<double>(x.size());
  const double magnitudes = sum([](double v) { return std::fabs(v); });
  const bool has_nan = std::ranges::any_of(x, [](double v) { return std::isnan(v); });
  switch (op) {
    case OpId::sum: return {sum([](double v) { return v; }), magnitudes};
    case OpId::mean: return {sum([](double v) { return v; }) / count, magnitudes / count};
    case OpId::prod: {
      const double y = std::accumulate(x.begin(), x.end(), 1.0, std::multiplies<>());
      return {y, std::fabs(y)};
    }
    case OpId::norm: {
      const double y = std::sqrt(sum([](double v) { return v * v; }));
      return {y, y};
    }
    case OpId::min: return {has_nan ? std::nan("") : *std::ranges::min_element(x), 0};
    case OpId::max: return {has_nan ? std::nan("") : *std::ranges::max_element(x), 0};
    case OpId::argmin: return {place_of(x, [](double a, double b) { return a < b; }), 0};
    case OpId::argmax: return {place_of(x, [](double a, double b) { return a > b; }), 0};
    case OpId::any: return {std::ranges::any_of(x, [](double v) { return v != 0; }) ? 1.0 : 0, 0};
    case OpId::all: return {std::ranges::all_of(x, [](double v) { return v != 0; }) ? 1.0 : 0, 0};
    default: break;
  }
  if (has_nan) return {std::nan(""), 0};
  const double most = x.empty() ? -kInfinity : *std::ranges::max_element(x);
  const double shift = std::isfinite(most) ? most : 0;
  const double y = std::log(sum([&](double v) { return std::exp(v - shift); })) + shift;
  return {y, std::fabs(y) + 1};
}

std::vector<OpId> all_reductions() {
  std::vector<OpId> out;
  for (int i = 0; i < kOpCount; ++i) {
    if (row_of(static_cast<OpId>(i)).reduction) out.push_back(static_cast<OpId>(i));
  }
  return out;
}

DType result_type(OpId op, DType storage) {
  return gives_ids(op) ? DType::i64 : output_dtype(op, storage);
}

// Elements of each result, results and elements in row-major order.
std::vector<Values> groups(const Values& x, const Shape& shape, Axes axes) {
  std::vector<Values> out;
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    int64_t rest = i, result = 0, step = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (!axes.has(axis)) {
        result += rest % shape[axis] * step;
        step *= shape[axis];
      }
      rest /= shape[axis];
    }
    out.resize(std::max(out.size(), static_cast<size_t>(result) + 1));
    out[static_cast<size_t>(result)].push_back(x[static_cast<size_t>(i)]);
  }
  return out;
}

Shape kept_shape(Shape shape, Axes axes) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axes.has(axis)) shape.set(axis, 1);
  }
  return shape;
}

void require_reduced(Device& device, OpId op, DType dtype, const Shape& shape, Axes axes,
                     const Values& x, Layout layout) {
  INFO(name_of(op) << ' ' << name_of(dtype) << ' ' << shape << " axes " << axes.set);
  const Guarded in = holding(device, dtype, shape, x, layout);
  Guarded out(device, result_type(op, dtype), kept_shape(shape, axes), layout);
  const Values y = run(device, {&out}, [&] { device.ops().reduce(op, out, in, axes); })[0];
  Values exact, bound;
  for (const Values& group : groups(x, shape, axes)) {
    const Expected e = reduced(op, group);
    const auto terms = static_cast<double>(group.size());
    exact.push_back(is_floating(out.tensor().dtype()) ? round_to(dtype, e.value) : e.value);
    const bool is_exact = row_of(op).bits == OpBits::exact;
    bound.push_back(is_exact ? 0
                             : std::fabs(e.value) * 2 * rounding_unit(dtype) +
                                   (terms + 8) * kU32 * e.scale + 2 * smallest_step(dtype));
  }
  require_close(y, exact, bound);
}

TEST_CASE("every reduction is its definition, along every set of axes") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Shape shape = GENERATE(Shape{3, 2, 67}, Shape{5, 1, 33}, Shape{9});
  for (const OpId op : all_reductions()) {
    for (uint32_t set = 0; set < 1u << shape.rank(); ++set) {
      Axes axes;
      axes.set = set;
      Values x = random_values(dtype, shape.numel(), set + 1, 1);
      if (op == OpId::all || op == OpId::any) {
        for (size_t i = 0; i < x.size(); ++i) x[i] = (i % 37 == 0) == (op == OpId::any) ? 1 : 0;
      }
      require_reduced(*device, op, dtype, shape, axes, x, layout);
    }
  }
}

TEST_CASE("a long reduction is shared out and put together in order") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Shape shape = GENERATE(Shape{2, 150000}, Shape{70000, 3});
  const int axis = shape[0] == 2 ? 1 : 0;
  Values x = random_values(DType::f32, shape.numel(), 1, 0.01);
  for (double& v : x) v = round_to(DType::f32, std::clamp(v + 1, 0.97, 1.03));
  for (const OpId op : {OpId::sum, OpId::max, OpId::argmin, OpId::log_sum_exp}) {
    require_reduced(*device, op, DType::f32, shape, {axis}, x, Layout::contiguous);
  }
}

TEST_CASE("no element of a long reduction is left out: sums of ones are exact") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Shape shape{2, 150000};
  const Guarded x = holding(*device, DType::f32, shape, Values(300000, 1.0));
  Guarded out(*device, DType::f32, {2}), all(*device, DType::f32, {1});
  Ops& ops = device->ops();
  CHECK(run(*device, {&out}, [&] { ops.reduce(OpId::sum, out, x, {1}); })[0] ==
        Values{150000, 150000});
  CHECK(run(*device, {&all}, [&] { ops.reduce(OpId::sum, all, x, {0, 1}); })[0] == Values{300000});
}

TEST_CASE("reductions of NaN, of infinities and of equal elements, where they are") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int64_t width = 70;
  const Values special = {std::nan(""), kInfinity, -kInfinity, 0, 3};
  Values x;
  for (const double rest : {1.0, -kInfinity, kInfinity}) {
    for (const double v : special) {
      for (const int64_t at : {0, 5, 31, 32, 69}) {
        Values row(static_cast<size_t>(width), rest);
        for (int64_t i = at; i < width; i += 11) row[static_cast<size_t>(i)] = v;
        x.insert(x.end(), row.begin(), row.end());
      }
    }
  }
  const Shape rows{std::ssize(x) / width, width};
  Values columns;
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    columns.push_back(x[static_cast<size_t>(i % rows[0] * width + i / rows[0])]);
  }
  for (const OpId op : all_reductions()) {
    require_reduced(*device, op, dtype, rows, {1}, x, Layout::contiguous);
    require_reduced(*device, op, dtype, {width, rows[0]}, {0}, columns, Layout::contiguous);
  }
}

TEST_CASE("any and all take bools") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Values x = {0, 0, 0, 1, 0, 1, 1, 1, 1};
  for (const OpId op : {OpId::any, OpId::all}) {
    require_reduced(*device, op, DType::boolean, {3, 3}, {1}, x, Layout::contiguous);
  }
}

TEST_CASE("reductions of no elements, and what they refuse") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  Guarded none(*device, DType::f32, {2, 0}), out(*device, DType::f32, {2});
  const auto of_nothing = [&](OpId op) {
    return run(*device, {&out}, [&] { ops.reduce(op, out, none, {1}); })[0];
  };
  CHECK(of_nothing(OpId::sum) == Values{0, 0});
  CHECK(of_nothing(OpId::prod) == Values{1, 1});
  CHECK(of_nothing(OpId::norm) == Values{0, 0});
  CHECK(of_nothing(OpId::log_sum_exp) == Values{-kInfinity, -kInfinity});
  CHECK(std::isnan(of_nothing(OpId::mean)[1]));
  CHECK_THROWS_WITH(ops.reduce(OpId::max, out, none, {1}),
                    "[max] x has shape [2, 0]: there is none among no elements");
  Guarded x(*device, DType::f32, {2, 3}), one(*device, DType::f32, {1});
  CHECK_NOTHROW(ops.reduce(OpId::sum, one, x, {0, 1}));
  CHECK_THROWS_WITH(ops.reduce(OpId::sum, one, x, {1}),
                    "[sum] out has shape [1], expected [2, 1] or [2]");
  CHECK_THROWS_WITH(ops.reduce(OpId::sum, out, x, {2}),
                    "[sum] axes reach beyond the last of x, whose shape is [2, 3]");
}

}  // namespace
}  // namespace plumb
