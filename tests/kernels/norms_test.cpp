// rms_norm, add_rms_norm, layer_norm, softmax: rows and their sums.
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::unique_ptr<Device> device;
  DType dtype;
  Layout layout;
  Shape shape;
  size_t channels() const { return static_cast<size_t>(shape[-1]); }
};

Case any_case() {
  Case c;
  c.device = open_test_device(GENERATE(from_range(test_devices())));
  c.dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  c.layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  c.shape =
      GENERATE(Shape{3, 2, 1}, Shape{2, 3, 47}, Shape{5, 64}, Shape{2, 1, 2, 2309}, Shape{0, 8});
  return c;
}

// Row by row: rms(row) = 1 / sqrt(mean + eps).
double reciprocal_rms(const Values& x, size_t begin, size_t n, double eps) {
  double squares = 0;
  for (size_t i = begin; i < begin + n; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<double>(n) + eps);
}

struct Expected {
  Values exact, model, bound;
};

Expected expected_rms_norm(const Case& c, const Values& x, const Values& w,
                           const RmsNormParams& p) {
  Expected e;
  const double n = static_cast<double>(c.channels());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t column = i % c.channels();
    const double normal = x[i] * reciprocal_rms(x, i - column, c.channels(), p.eps);
    const double factor = p.weight_offset + w[column];
    const bool before = p.rounding == WeightRounding::before;
    e.exact.push_back(factor * normal);
    e.model.push_back(round_to(c.dtype, factor * (before ? round_to(c.dtype, normal) : normal)));
    // Any order of summing n squares in float32, halved by the root, and a few roundings.
    const double relative = 2.1 * rounding_unit(c.dtype) + (n / 2 + 6) * kU32;
    e.bound.push_back(std::fabs(normal) * (std::fabs(factor) * relative + kU32) +
                      (1 + std::fabs(factor)) * smallest_step(c.dtype));
  }
  return e;
}

TEST_CASE("rms_norm: both rounding orders, offset, any layout") {
  const Case c = any_case();
  RmsNormParams params;
  params.eps = GENERATE(1e-6, 0.1);
  params.rounding = GENERATE(WeightRounding::before, WeightRounding::after);
  params.weight_offset = params.rounding == WeightRounding::after ? 1 : 0;
  const Values x = random_values(c.dtype, c.shape.numel(), 1, 0.5);
  const Values w = random_values(c.dtype, c.shape[-1], 2);
  Guarded in(*c.device, c.dtype, c.shape, c.layout), weight(*c.device, c.dtype, {c.shape[-1]});
  Guarded out(*c.device, c.dtype, c.shape, c.layout);
  in.set(x);
  weight.set(w);
  const Values y =
      run(*c.device, {&out}, [&] { c.device->ops().rms_norm(out, in, weight, params); })[0];
  const Expected e = expected_rms_norm(c, x, w, params);
  require_close(y, e.exact, e.bound);
  require_conforms(c.dtype, y, e.model, {c.shape[-1]});
  out.set(x);
  c.device->ops().rms_norm(out, out, weight, params);
  REQUIRE(out.get() == y);
}

TEST_CASE("rms_norm: large and tiny rows, NaN stays in its row") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Guarded x(*device, dtype, {4, 65}), weight(*device, dtype, {65}), out(*device, dtype, {4, 65});
  Values values(4 * 65);
  for (size_t i = 0; i < 65; ++i) {
    values[i] = i % 2 ? 0x1p60 : -0x1p60;
    values[65 + i] = 0x1p-100;
    values[130 + i] = i == 40 ? std::nan("") : 1;
    values[195 + i] = 0;
  }
  x.set(values);
  weight.set(Values(65, 1.0));
  const Values y = run(*device, {&out}, [&] { device->ops().rms_norm(out, x, weight, {1e-6}); })[0];
  for (size_t i = 0; i < 65; ++i) {
    REQUIRE(std::fabs(y[i]) == Approx(1).epsilon(4 * rounding_unit(dtype)));
    REQUIRE(y[65 + i] == Approx(0x1p-100 * 1000).epsilon(4 * rounding_unit(dtype)));
    REQUIRE(std::isnan(y[130 + i]));
    REQUIRE(y[195 + i] == 0);
  }
}

TEST_CASE("add_rms_norm: rounds the sum and normalises the rounded sum, fused and composed alike") {
  const Case c = any_case();
  const bool fused = GENERATE(true, false);
  RmsNormParams params{1e-6, 1, WeightRounding::after};
  const Values a = random_values(c.dtype, c.shape.numel(), 3),
               b = random_values(c.dtype, c.shape.numel(), 4);
  const Values w = random_values(c.dtype, c.shape[-1], 5);
  Guarded x(*c.device, c.dtype, c.shape, c.layout), residual(*c.device, c.dtype, c.shape);
  Guarded weight(*c.device, c.dtype, {c.shape[-1]});
  Guarded sum(*c.device, c.dtype, c.shape, c.layout), out(*c.device, c.dtype, c.shape);
  x.set(a);
  residual.set(b);
  weight.set(w);
  Ops& ops = c.device->ops();
  ops.set_fused(fused ? OpSet().set() : OpSet());
  const auto results = run(*c.device, {&sum, &out},
                           [&] { ops.add_rms_norm(sum, out, x, residual, weight, params); });
  Values total;
  for (size_t i = 0; i < a.size(); ++i) total.push_back(round_to(c.dtype, a[i] + b[i]));
  require_conforms(c.dtype, results[0], total, {});
  if (c.dtype == DType::f32) REQUIRE(results[0] == total);
  const Expected e = expected_rms_norm(c, results[0], w, params);
  require_close(results[1], e.exact, e.bound);
  require_conforms(c.dtype, results[1], e.model, {c.shape[-1]});
  // The sum may take the place of the residual.
  sum.set(b);
  ops.add_rms_norm(sum, out, x, sum, weight, params);
  REQUIRE(sum.get() == results[0]);
  REQUIRE(out.get() == results[1]);
}

TEST_CASE("layer_norm: biased variance, one rounding, with and without bias") {
  const Case c = any_case();
  const bool with_bias = GENERATE(true, false);
  const double eps = GENERATE(1e-5, 0.1), mean_shift = GENERATE(0.0, 30.0);
  const size_t n = c.channels();
  Values x = random_values(c.dtype, c.shape.numel(), 6);
  for (double& v : x) v = round_to(c.dtype, v + mean_shift);
  const Values w = random_values(c.dtype, c.shape[-1], 7),
               b = random_values(c.dtype, c.shape[-1], 8);
  Guarded in(*c.device, c.dtype, c.shape, c.layout), weight(*c.device, c.dtype, {c.shape[-1]});
  Guarded bias(*c.device, c.dtype, {c.shape[-1]}), out(*c.device, c.dtype, c.shape, c.layout);
  in.set(x);
  weight.set(w);
  bias.set(b);
  const Tensor given = with_bias ? bias.tensor() : Tensor();
  const Values y =
      run(*c.device, {&out}, [&] { c.device->ops().layer_norm(out, in, weight, given, eps); })[0];
  Values exact, model, bound;
  for (size_t row = 0; row < x.size(); row += n) {
    double mean = 0, variance = 0, largest = 0;
    for (size_t i = 0; i < n; ++i) mean += x[row + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(n);
      largest = std::fmax(largest, std::fabs(x[row + i]));
    }
    const double factor = 1 / std::sqrt(variance + eps), terms = static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      const double scaled = (x[row + i] - mean) * factor * w[i], shift = with_bias ? b[i] : 0;
      exact.push_back(scaled + shift);
      model.push_back(round_to(c.dtype, exact.back()));
      // The mean may be off by n u largest; the deviations' sum by n u, and by the mean's error.
      const double mean_error = (terms + 2) * kU32 * largest * factor;
      bound.push_back(rounding_unit(c.dtype) * std::fabs(exact.back()) + smallest_step(c.dtype) +
                      std::fabs(w[i]) * mean_error *
                          (1 + mean_error * std::fabs(x[row + i] - mean) * factor) +
                      (terms / 2 + 8) * kU32 * (std::fabs(scaled) + std::fabs(shift)));
    }
  }
  require_close(y, exact, bound);
  if (mean_shift == 0) require_conforms(c.dtype, y, model, {c.shape[-1], c.shape[-1]});
  out.set(x);
  c.device->ops().layer_norm(out, out, weight, given, eps);
  REQUIRE(out.get() == y);
}

TEST_CASE("softmax: sums to one, any layout, large scores") {
  const Case c = any_case();
  const double sigma = GENERATE(1.0, 300.0);
  const size_t n = c.channels();
  const Values x = random_values(c.dtype, c.shape.numel(), 9, sigma);
  Guarded in(*c.device, c.dtype, c.shape, c.layout), out(*c.device, c.dtype, c.shape, c.layout);
  in.set(x);
  const Values y = run(*c.device, {&out}, [&] { c.device->ops().softmax(out, in); })[0];
  Values exact, model, bound;
  for (size_t row = 0; row < x.size(); row += n) {
    double max = -kInfinity, sum = 0;
    for (size_t i = 0; i < n; ++i) max = std::fmax(max, x[row + i]);
    for (size_t i = 0; i < n; ++i) sum += std::exp(x[row + i] - max);
    for (size_t i = 0; i < n; ++i) {
      exact.push_back(std::exp(x[row + i] - max) / sum);
      model.push_back(round_to(c.dtype, exact.back()));
      // The subtraction rounds by |x - max| u, which exp turns into a relative error.
      const double relative = rounding_unit(c.dtype) + (static_cast<double>(n) + 6) * kU32 +
                              2 * (max - x[row + i]) * kU32;
      bound.push_back(exact.back() * relative + smallest_step(c.dtype) + 0x1p-149);
    }
  }
  require_close(y, exact, bound);
  require_conforms(c.dtype, y, model, {c.shape[-1]});
  out.set(x);
  c.device->ops().softmax(out, out);
  REQUIRE(out.get() == y);
}

TEST_CASE("softmax: rows of -inf, of the lowest number, with NaN, with +inf") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  constexpr size_t n = 37;
  const double max = info(dtype).max, nan = std::nan("");
  Guarded x(*device, dtype, {6, n}), out(*device, dtype, {6, n});
  Values values(6 * n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    values[i] = -kInfinity;
    values[n + i] = -max;
    values[2 * n + i] = i == 36 ? nan : 1;
    values[3 * n + i] = i == 35 ? kInfinity : 1;
    values[4 * n + i] = i == 34 ? max : -max;
    values[5 * n + i] = i == 33 ? -3 : -kInfinity;
  }
  x.set(values);
  const Values y = run(*device, {&out}, [&] { device->ops().softmax(out, x); })[0];
  for (size_t i = 0; i < n; ++i) {
    REQUIRE(y[i] == 0);
    REQUIRE(y[n + i] == round_to(dtype, 1.0 / n));
    REQUIRE(std::isnan(y[2 * n + i]));
    if (i == 35) REQUIRE(std::isnan(y[3 * n + i]));
    REQUIRE(y[4 * n + i] == (i == 34 ? 1 : 0));
    REQUIRE(y[5 * n + i] == (i == 33 ? 1 : 0));
  }
}

TEST_CASE("norms refuse weights that do not fit") {
  const auto device = open_test_device("cpu");
  Guarded x(*device, DType::f32, {2, 8}), weight(*device, DType::f32, {7}),
      out(*device, DType::f32, {2, 8});
  REQUIRE_THROWS_WITH(device->ops().rms_norm(out, x, weight, {}),
                      Catch::Contains("weight has shape [7], expected [8]"));
  REQUIRE_THROWS_AS(device->ops().layer_norm(out, x, weight, Tensor(), 1e-5), UsageError);
  Guarded wide(*device, DType::f64, {2, 8}), wide_weight(*device, DType::f64, {8});
  REQUIRE_THROWS_WITH(device->ops().rms_norm(wide, wide, wide_weight, {}), Catch::Contains("f64"));
}

}  // namespace
}  // namespace plumb
