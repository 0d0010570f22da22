// cast, mask_rows, causal_conv1d, ssd_scan, gated_rms_norm against plain loops over the formulas of
// ops.h.
#include <cmath>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

using Catch::Contains;

namespace plumb {
namespace {

std::unique_ptr<Device> any_device() {
  return open_test_device(GENERATE(from_range(test_devices())));
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

Guarded holding(Device& device, DType dtype, const Shape& shape, const Values& values,
                Layout layout = Layout::contiguous) {
  Guarded out(device, dtype, shape, layout);
  out.set(values);
  return out;
}

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
  Guarded integers(*device, DType::i32, shape);
  REQUIRE_THROWS_WITH(device->ops().cast(integers, in), Contains("[cast] out is i32"));
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
  c.channels = GENERATE(5, 300);
  c.width = GENERATE(4, 2);
  c.state = GENERATE(false, true);
  const bool activated = c.width == 4;
  const Values x = random_values(dtype, c.batch * c.tokens * c.channels, 3);
  const Values w = random_values(dtype, c.channels * c.width, 4, 0.5);
  const Values b = random_values(dtype, c.channels, 5, 0.3);
  const Values before = random_values(dtype, c.batch * c.channels * c.width, 6);
  const Shape shape{c.batch, c.tokens, c.channels}, states{c.batch, c.channels, c.width};
  const Guarded in = holding(*device, dtype, shape, x, Layout::padded);
  const Guarded weight = holding(*device, dtype, {c.channels, 1, c.width}, w);
  const Guarded bias = holding(*device, dtype, {c.channels}, b);
  const Guarded state = holding(*device, dtype, states, before);
  Guarded out(*device, dtype, shape, Layout::padded), after(*device, dtype, states);
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

// --- ssd_scan

struct ScanCase {
  int64_t batch = 2, tokens = 1, heads = 4, head_dim = 6, groups = 2, columns = 5;
  int64_t size_of_x() const { return batch * tokens * heads * head_dim; }
  int64_t size_of_state() const { return batch * heads * head_dim * columns; }
};

struct ScanValues {
  Values x, dt, b, c, a_log, d, dt_bias, state;
};

ScanValues scan_values(const ScanCase& c, DType dtype) {
  const int64_t vectors = c.batch * c.tokens * c.groups * c.columns;
  ScanValues v;
  v.x = random_values(dtype, c.size_of_x(), 11);
  v.dt = random_values(dtype, c.batch * c.tokens * c.heads, 12);
  v.b = random_values(dtype, vectors, 13);
  v.c = random_values(dtype, vectors, 14);
  v.a_log = random_values(dtype, c.heads, 15, 0.5);
  v.d = random_values(dtype, c.heads, 16);
  v.dt_bias = random_values(dtype, c.heads, 17);
  for (double& bias : v.dt_bias) bias = round_to(dtype, bias - 2);
  v.state = random_values(DType::f32, c.size_of_state(), 18);
  return v;
}

struct Scanned {
  Values y, state;
};

// One token after the other; `low` rounds as the step form does.
Scanned plain_scan(const ScanCase& c, DType dtype, const ScanValues& v, const SsdParams& params,
                   bool with_state) {
  const bool step = params.form == SsdForm::step;
  const auto low = [&](double value) { return step ? round_to(dtype, value) : value; };
  Scanned out{Values(v.x.size()), with_state ? v.state : Values(v.state.size(), 0.0)};
  for (int64_t row = 0; row < c.batch; ++row) {
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t t = 0; t < c.tokens; ++t) {
        const int64_t token = row * c.tokens + t;
        const size_t head = static_cast<size_t>(h);
        const double raw = v.dt[static_cast<size_t>(token * c.heads + h)];
        double dt = round_to(dtype, softplus(round_to(dtype, raw + v.dt_bias[head])));
        if (params.dt_min) dt = std::fmax(dt, round_to(dtype, *params.dt_min));
        if (params.dt_max) dt = std::fmin(dt, round_to(dtype, *params.dt_max));
        const double decay = std::exp(-dt * std::exp(v.a_log[head]));
        for (int64_t p = 0; p < c.head_dim; ++p) {
          const size_t at = static_cast<size_t>((token * c.heads + h) * c.head_dim + p);
          double sum = 0;
          for (int64_t n = 0; n < c.columns; ++n) {
            const int64_t group = h / (c.heads / c.groups);
            const size_t vector = static_cast<size_t>((token * c.groups + group) * c.columns + n);
            double& s = out.state[static_cast<size_t>(
                ((row * c.heads + h) * c.head_dim + p) * c.columns + n)];
            s = s * decay + low(low(dt * v.b[vector]) * v.x[at]);
            if (step) s = round_to(DType::f32, s);
            sum += low(s) * v.c[vector];
          }
          out.y[at] = low(low(sum) + low(v.x[at] * v.d[head]));
        }
      }
    }
  }
  return out;
}

// The operands on a device, between guards.
struct ScanOperands {
  Guarded x, dt, b, c, a_log, d, dt_bias, state;
  ScanOperands(Device& device, const ScanCase& k, DType dtype, const ScanValues& v)
      : x(holding(device, dtype, {k.batch, k.tokens, k.heads, k.head_dim}, v.x, Layout::padded)),
        dt(holding(device, dtype, {k.batch, k.tokens, k.heads}, v.dt, Layout::padded)),
        b(holding(device, dtype, {k.batch, k.tokens, k.groups, k.columns}, v.b)),
        c(holding(device, dtype, {k.batch, k.tokens, k.groups, k.columns}, v.c)),
        a_log(holding(device, dtype, {k.heads}, v.a_log)),
        d(holding(device, dtype, {k.heads}, v.d)),
        dt_bias(holding(device, dtype, {k.heads}, v.dt_bias)),
        state(holding(device, DType::f32, {k.batch, k.heads, k.head_dim, k.columns}, v.state)) {}
  SsdInputs inputs(bool with_state) const {
    return {x, dt, b, c, a_log, d, dt_bias, with_state ? state.tensor() : Tensor()};
  }
};

// Sums of this many float32 terms of size up to the largest value.
Values bounds(const Values& exact, double terms) {
  double largest = 0;
  for (double v : exact) largest = std::fmax(largest, std::fabs(v));
  return Values(exact.size(), (4 * std::sqrt(terms) + 8) * kU32 * largest);
}

TEST_CASE("ssd_scan in chunks: every length around a chunk, with and without state") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  ScanCase c;
  c.tokens = GENERATE(1, 3, 8, 9, 20, 60, 61, 64, 65, 257);
  c.groups = c.tokens % 2 == 0 ? 1 : 2;
  if (c.tokens == 65) c.head_dim = 70, c.columns = 67;  // more than a tile
  const bool with_state = GENERATE(false, true);
  SsdParams params{SsdForm::chunk, 8, 0.1, std::nullopt};
  if (c.tokens == 9) params.dt_max = 0.2;
  const ScanValues v = scan_values(c, dtype);
  const ScanOperands operands(*device, c, dtype, v);
  Guarded y(*device, DType::f32, operands.x.tensor().shape(), Layout::padded);
  Guarded after(*device, DType::f32, operands.state.tensor().shape());
  const std::vector<Values> got = run(*device, {&y, &after}, [&] {
    device->ops().ssd_scan(y, after, operands.inputs(with_state), params);
  });
  const Scanned e = plain_scan(c, dtype, v, params, with_state);
  const double terms = static_cast<double>(c.columns + 60);
  require_close(got[0], e.y, bounds(e.y, terms));
  require_close(got[1], e.state, bounds(e.state, terms));
  if (!with_state) return;
  Guarded in_place = holding(*device, DType::f32, operands.state.tensor().shape(), v.state);
  SsdInputs inputs = operands.inputs(true);
  inputs.state = in_place;
  device->ops().ssd_scan(y, in_place, inputs, params);
  REQUIRE(in_place.get() == got[1]);
  REQUIRE(y.get() == got[0]);
}

TEST_CASE("ssd_scan: a step rounds to the storage dtype, its state stays float32") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  ScanCase c;
  c.head_dim = GENERATE(6, 64);
  c.columns = GENERATE(5, 128);
  const SsdParams params{SsdForm::step, 8, std::nullopt, std::nullopt};
  const ScanValues v = scan_values(c, dtype);
  const ScanOperands operands(*device, c, dtype, v);
  Guarded y(*device, dtype, operands.x.tensor().shape());
  Guarded after(*device, DType::f32, operands.state.tensor().shape());
  const std::vector<Values> got = run(*device, {&y, &after}, [&] {
    device->ops().ssd_scan(y, after, operands.inputs(true), params);
  });
  const Scanned e = plain_scan(c, dtype, v, params, true);
  if (dtype == DType::f32) {
    require_close(got[0], e.y, bounds(e.y, static_cast<double>(c.columns)));
  }
  require_conforms(dtype, got[0], e.y, {c.columns});
  require_close(got[1], e.state, bounds(e.state, 1));
  Guarded in_place = holding(*device, DType::f32, operands.state.tensor().shape(), v.state);
  SsdInputs inputs = operands.inputs(true);
  inputs.state = in_place;
  device->ops().ssd_scan(y, in_place, inputs, params);
  REQUIRE(in_place.get() == got[1]);
}

TEST_CASE("ssd_scan: two halves with the state between them are the whole and rows do not mix") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int64_t cut = GENERATE(1, 64, 100);
  ScanCase c;
  c.tokens = 130;
  const SsdParams params{SsdForm::chunk, 8, 0.001, std::nullopt};
  const ScanValues v = scan_values(c, dtype);
  const ScanOperands operands(*device, c, dtype, v);
  Ops& ops = device->ops();
  Guarded whole(*device, DType::f32, operands.x.tensor().shape());
  Guarded parts(*device, DType::f32, operands.x.tensor().shape());
  Guarded state(*device, DType::f32, operands.state.tensor().shape());
  ops.ssd_scan(whole, {}, operands.inputs(false), params);
  const auto tokens = [&](const Tensor& t, int64_t begin, int64_t end) {
    return t.slice(1, begin, end);
  };
  SsdInputs in = operands.inputs(false);
  const SsdInputs all = in;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, c.tokens}}) {
    in.x = tokens(all.x, begin, end);
    in.dt = tokens(all.dt, begin, end);
    in.b = tokens(all.b, begin, end);
    in.c = tokens(all.c, begin, end);
    ops.ssd_scan(tokens(parts, begin, end), state, in, params);
    in.state = state;
  }
  const Values expected = whole.get();
  require_close(parts.get(), expected, bounds(expected, 60));

  Guarded alone(*device, DType::f32, {1, c.tokens, c.heads, c.head_dim});
  SsdInputs second = all;
  for (Tensor* t : {&second.x, &second.dt, &second.b, &second.c}) *t = t->slice(0, 1, 2);
  ops.ssd_scan(alone, {}, second, params);
  const Values row = alone.get();
  const auto half = expected.begin() + static_cast<std::ptrdiff_t>(expected.size() / 2);
  REQUIRE(row == Values(half, expected.end()));
}

TEST_CASE("ssd_scan: large steps underflow to zero, never to NaN") {
  const auto device = any_device();
  ScanCase c;
  c.tokens = 70;
  ScanValues v = scan_values(c, DType::f32);
  for (double& dt : v.dt) dt = 500;
  const ScanOperands operands(*device, c, DType::f32, v);
  const SsdParams params{SsdForm::chunk, 8, std::nullopt, std::nullopt};
  Guarded y(*device, DType::f32, operands.x.tensor().shape());
  Guarded after(*device, DType::f32, operands.state.tensor().shape());
  device->ops().ssd_scan(y, after, operands.inputs(true), params);
  const Scanned e = plain_scan(c, DType::f32, v, params, true);
  require_close(y.get(), e.y, bounds(e.y, 60));
}

TEST_CASE("ssd_scan: what does not fit is named") {
  const auto device = any_device();
  ScanCase c;
  c.tokens = 2;
  const ScanOperands o(*device, c, DType::bf16, scan_values(c, DType::bf16));
  const Guarded y(*device, DType::f32, o.x.tensor().shape());
  const Guarded low(*device, DType::bf16, o.x.tensor().shape());
  Ops& ops = device->ops();
  const SsdInputs in = o.inputs(true);
  REQUIRE_THROWS_WITH(ops.ssd_scan(low, {}, in, {SsdForm::step, 8, {}, {}}),
                      Contains("[ssd_scan] the step form takes one token, x has 2"));
  REQUIRE_THROWS_WITH(ops.ssd_scan(low, {}, in, {SsdForm::chunk, 8, {}, {}}),
                      Contains("[ssd_scan] y is bf16, expected f32"));
  SsdInputs three = in;
  three.b = Guarded(*device, DType::bf16, {2, 2, 3, 5});
  REQUIRE_THROWS_WITH(ops.ssd_scan(y, {}, three, {SsdForm::chunk, 8, {}, {}}),
                      Contains("[ssd_scan] x has 4 heads, b has 3 groups"));
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
