// cast, mask_rows, causal_conv1d, gated_rms_norm against plain loops over the formulas of ops.h.
#include <cmath>

#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

using Catch::Contains;

namespace plumb {
namespace {

std::unique_ptr<Device> any_device() {
  return open_test_device(GENERATE(from_range(test_devices())));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST_CASE("cast: every pair of float dtypes, any layout") {
  const auto device = any_device();
  const DType from = GENERATE(DType::f32, DType::f16, DType::bf16);
  const DType to = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Shape shape{2, 3, 1100};
  const Values x = random_values(from, shape.numel(), 1);
  const Guarded in = holding(*device, from, shape, x, layout);
  Guarded out(*device, to, shape, layout);
  const Values y = run(*device, {&out}, [&] { device->ops().cast(out, in); })[0];
  for (size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == round_to(to, x[i]));
}

TEST_CASE("mask_rows: rows of padding become zero, NaN included") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  const Shape shape{2, 5, 47};
  Values x = random_values(dtype, shape.numel(), 2);
  x[3] = std::nan("");
  const Values keep = {0, 0, 1, 1, 1, 1, 1, 1, 1, 0};
  const Guarded in = holding(*device, dtype, shape, x, layout);
  const Guarded valid = holding(*device, DType::boolean, {2, 5}, keep);
  Guarded out(*device, dtype, shape, layout);
  const Values y = run(*device, {&out}, [&] { device->ops().mask_rows(out, in, valid); })[0];
  for (size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == (keep[i / 47] != 0 ? x[i] : 0));
}

// --- causal_conv1d

struct ConvCase {
  int64_t batch = 2, tokens, channels, width;
  bool state;
};

struct ConvExpected {
  Values sum, model, bound, after;
};

ConvExpected expected_conv(const ConvCase& c, DType dtype, const Values& x, const Values& w,
                           const Values& b, const Values& before, bool activated) {
  ConvExpected e;
  e.after.resize(static_cast<size_t>(c.batch * c.channels * c.width));
  const auto past = [&](int64_t row, int64_t t, int64_t channel) {  // t < 0: the state
    if (t >= 0) return x[static_cast<size_t>((row * c.tokens + t) * c.channels + channel)];
    const int64_t at = (row * c.channels + channel) * c.width + c.width + t;
    return c.state ? before[static_cast<size_t>(at)] : 0;
  };
  for (int64_t row = 0; row < c.batch; ++row) {
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t channel = 0; channel < c.channels; ++channel) {
        double sum = b[static_cast<size_t>(channel)], size = std::fabs(sum);
        for (int64_t k = 0; k < c.width; ++k) {
          const double product = w[static_cast<size_t>(channel * c.width + k)] *
                                 past(row, t - c.width + 1 + k, channel);
          sum += product;
          size += std::fabs(product);
        }
        const double rounded = round_to(dtype, sum);
        e.sum.push_back(activated ? silu(rounded) : sum);
        e.model.push_back(round_to(dtype, activated ? silu(rounded) : sum));
        const double u = rounding_unit(dtype);
        e.bound.push_back((static_cast<double>(c.width) + 4) * kU32 * size +
                          3 * u * (std::fabs(sum) + size) + smallest_step(dtype));
      }
    }
    for (int64_t channel = 0; channel < c.channels; ++channel) {
      for (int64_t k = 0; k < c.width; ++k) {
        e.after[static_cast<size_t>((row * c.channels + channel) * c.width + k)] =
            past(row, c.tokens - c.width + k, channel);
      }
    }
  }
  return e;
}

TEST_CASE("causal_conv1d: with and without state, activation, every length around the width") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  ConvCase c;
  c.tokens = GENERATE(1, 3, 4, 8, 9, 20, 257);
  c.channels = GENERATE(5, 304);
  c.width = GENERATE(4, 2);
  c.state = GENERATE(false, true);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  const bool activated = c.width == 4;
  const Values x = random_values(dtype, c.batch * c.tokens * c.channels, 3);
  const Values w = random_values(dtype, c.channels * c.width, 4, 0.5);
  const Values b = random_values(dtype, c.channels, 5, 0.3);
  const Values before = random_values(dtype, c.batch * c.channels * c.width, 6);
  const Shape shape{c.batch, c.tokens, c.channels}, states{c.batch, c.channels, c.width};
  const Guarded in = holding(*device, dtype, shape, x, layout);
  const Guarded weight = holding(*device, dtype, {c.channels, 1, c.width}, w);
  const Guarded bias = holding(*device, dtype, {c.channels}, b);
  const Guarded state = holding(*device, dtype, states, before);
  Guarded out(*device, dtype, shape, layout), after(*device, dtype, states);
  std::optional<Activation> function;
  if (activated) function = Activation::silu;
  const Tensor given = c.state ? state.tensor() : Tensor();
  const std::vector<Values> y = run(*device, {&out, &after}, [&] {
    device->ops().causal_conv1d(out, after, in, weight, bias, given, function);
  });
  const ConvExpected e = expected_conv(c, dtype, x, w, b, before, activated);
  require_close(y[0], e.sum, e.bound);
  require_conforms(dtype, y[0], e.model, {c.width});
  REQUIRE(y[1] == e.after);
  if (!c.state) return;
  Guarded in_place = holding(*device, dtype, states, before);
  device->ops().causal_conv1d(out, in_place, in, weight, bias, in_place, function);
  REQUIRE(in_place.get() == e.after);
  REQUIRE(out.get() == y[0]);
}

TEST_CASE("causal_conv1d: no tokens keep the state, wrong shapes are named") {
  const auto device = any_device();
  const Guarded x(*device, DType::f32, {1, 0, 3}), weight(*device, DType::f32, {3, 1, 2});
  Guarded out(*device, DType::f32, {1, 0, 3}), after(*device, DType::f32, {1, 3, 2});
  const Values kept = {1, 2, 3, 4, 5, 6};
  const Guarded before = holding(*device, DType::f32, {1, 3, 2}, kept);
  device->ops().causal_conv1d(out, after, x, weight, {}, before, std::nullopt);
  REQUIRE(after.get() == kept);
  const Guarded wrong(*device, DType::f32, {1, 3, 3});
  REQUIRE_THROWS_WITH(device->ops().causal_conv1d(out, after, x, weight, {}, wrong, std::nullopt),
                      Contains("[causal_conv1d] state_before has shape [1, 3, 3], expected"));
}

// --- gated_rms_norm

TEST_CASE("gated_rms_norm: both forms, groups, any layout") {
  const auto device = any_device();
  const DType low = GENERATE(DType::f32, DType::f16, DType::bf16);
  const DType wide = GENERATE(false, true) ? DType::f32 : low;
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);
  const int64_t width = GENERATE(24, 47, 1030), groups = width == 1030 ? 1 : 2;
  const GatedRmsNormParams params{1e-3, width};
  const Shape shape{2, 3, width * groups};
  const Values x = random_values(wide, shape.numel(), 21);
  const Values g = random_values(low, shape.numel(), 22);
  const Values w = random_values(low, width * groups, 23);
  const Guarded in = holding(*device, wide, shape, x, layout);
  const Guarded gate = holding(*device, low, shape, g, Layout::padded);
  const Guarded weight = holding(*device, low, {width * groups}, w);
  Guarded out(*device, wide, shape, layout);
  const Values y =
      run(*device, {&out}, [&] { device->ops().gated_rms_norm(out, in, gate, weight, params); })[0];
  Values exact, model, bound;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i - i % static_cast<size_t>(width);
    double squares = 0;
    for (size_t j = first; j < first + static_cast<size_t>(width); ++j) {
      squares += x[j] * silu(g[j]) * x[j] * silu(g[j]);
    }
    const double n =
        x[i] * silu(g[i]) / std::sqrt(squares / static_cast<double>(width) + params.eps);
    const double factor = w[i % w.size()];
    exact.push_back(factor * n);
    model.push_back(round_to(wide, factor * round_to(wide, n)));
    const double relative =
        2.1 * rounding_unit(wide) + (static_cast<double>(width) / 2 + 12) * kU32;
    bound.push_back(std::fabs(factor * n) * relative + 4 * smallest_step(wide));
  }
  require_close(y, exact, bound);
  require_conforms(wide, y, model, {width});
  out.set(x);
  device->ops().gated_rms_norm(out, out, gate, weight, params);
  REQUIRE(out.get() == y);
  REQUIRE_THROWS_WITH(device->ops().gated_rms_norm(out, in, gate, weight, {1e-3, width + 1}),
                      Contains("[gated_rms_norm] group_size is"));
}

}  // namespace
}  // namespace plumb
