// ssd_scan against one token after the other, by the formula of ops.h.
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

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

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
  ScanOperands(Device& device, const ScanCase& k, DType dtype, const ScanValues& v,
               Layout layout = Layout::padded)
      : x(holding(device, dtype, {k.batch, k.tokens, k.heads, k.head_dim}, v.x, layout)),
        dt(holding(device, dtype, {k.batch, k.tokens, k.heads}, v.dt, Layout::padded)),
        b(holding(device, dtype, {k.batch, k.tokens, k.groups, k.columns}, v.b, layout)),
        c(holding(device, dtype, {k.batch, k.tokens, k.groups, k.columns}, v.c, layout)),
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

// y and the state after it, which have to be near `exact`.
std::vector<Values> require_scan(Device& device, const ScanOperands& operands, const ScanCase& c,
                                 const SsdParams& params, const Scanned& exact, bool with_state,
                                 Layout layout) {
  Guarded y(device, DType::f32, operands.x.tensor().shape(), layout);
  Guarded after(device, DType::f32, operands.state.tensor().shape());
  std::vector<Values> got = run(device, {&y, &after}, [&] {
    device.ops().ssd_scan(y, after, operands.inputs(with_state), params);
  });
  const double terms = static_cast<double>(c.columns + 60);
  require_close(got[0], exact.y, bounds(exact.y, terms));
  require_close(got[1], exact.state, bounds(exact.state, terms));
  return got;
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
  const Scanned e = plain_scan(c, dtype, v, params, with_state);
  const std::vector<Values> got =
      require_scan(*device, operands, c, params, e, with_state, Layout::padded);
  if (!with_state) return;
  Guarded y(*device, DType::f32, operands.x.tensor().shape(), Layout::padded);
  Guarded in_place = holding(*device, DType::f32, operands.state.tensor().shape(), v.state);
  SsdInputs inputs = operands.inputs(true);
  inputs.state = in_place;
  device->ops().ssd_scan(y, in_place, inputs, params);
  REQUIRE(in_place.get() == got[1]);
  REQUIRE(y.get() == got[0]);
}

TEST_CASE("ssd_scan in chunks: rows that 16-byte accesses read, more than a tile and less") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  ScanCase c;
  c.tokens = GENERATE(64, 97, 130);
  c.head_dim = GENERATE(24, 72);
  c.columns = c.head_dim == 24 ? 136 : 40;
  const SsdParams params{SsdForm::chunk, 8, 0.001, std::nullopt};
  const ScanValues v = scan_values(c, dtype);
  const ScanOperands operands(*device, c, dtype, v, Layout::contiguous);
  const Scanned e = plain_scan(c, dtype, v, params, true);
  require_scan(*device, operands, c, params, e, true, Layout::contiguous);
}

TEST_CASE("ssd_scan: a step rounds to the storage dtype, its state stays float32") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  ScanCase c;
  c.head_dim = GENERATE(6, 7, 64);
  c.columns = GENERATE(5, 64, 128, 130, 136);
  const SsdParams params{SsdForm::step, 8, std::nullopt, std::nullopt};
  const ScanValues v = scan_values(c, dtype);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded);  // with vectors, or without
  const ScanOperands operands(*device, c, dtype, v, layout);
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

// Devices may read a state ahead of their queue, but not one that an op there is to write.
TEST_CASE("ssd_scan: steps in a row, each from the state that the one before has just written") {
  const auto device = any_device();
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool in_place = GENERATE(true, false);
  ScanCase c;
  c.batch = 1;
  c.heads = GENERATE(2, 3);  // with waves that have nothing to do, or without
  c.groups = 1;
  c.head_dim = GENERATE(6, 64);
  c.columns = 128;
  const SsdParams params{SsdForm::step, 8, std::nullopt, std::nullopt};
  const ScanValues v = scan_values(c, dtype);
  const ScanOperands operands(*device, c, dtype, v, Layout::contiguous);
  const Shape shape = operands.state.tensor().shape();
  Guarded y(*device, dtype, operands.x.tensor().shape());
  std::vector<Guarded> states;
  const auto steps = [&](bool wait) {
    constexpr size_t kSteps = 12;
    states.clear();
    for (size_t i = 0; i < (in_place ? 1 : kSteps + 1); ++i) {
      states.push_back(holding(*device, DType::f32, shape, v.state));
    }
    for (size_t i = 0; i < kSteps; ++i) {
      SsdInputs inputs = operands.inputs(true);
      inputs.state = states[in_place ? 0 : i];
      device->ops().ssd_scan(y, states[in_place ? 0 : i + 1], inputs, params);
      if (wait) device->synchronize();
    }
    return std::pair{states.back().get(), y.get()};
  };
  const auto expected = steps(true);
  for (int i = 0; i < 5; ++i) REQUIRE(steps(false) == expected);
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
  three.b = three.c = Guarded(*device, DType::bf16, {2, 2, 3, 5});
  REQUIRE_THROWS_WITH(ops.ssd_scan(y, {}, three, {SsdForm::chunk, 8, {}, {}}),
                      Contains("[ssd_scan] G = 3 must divide H = 4"));
}

}  // namespace
}  // namespace plumb
