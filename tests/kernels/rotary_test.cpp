// rotary_table and rotary.
#include <cmath>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

TEST_CASE("rotary_table: cosine and sine of the float32 angle") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const double scaling = GENERATE(1.0, 1.2079);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const int64_t pairs = GENERATE(1, 13, 1100);
  const Values position = {0, 1, 2, 1000, 131071, 16777215};
  Guarded positions(*device, DType::i64, {2, 3}), frequencies(*device, DType::f32, {pairs});
  Guarded cos(*device, dtype, {2, 3, 2 * pairs}, layout),
      sin(*device, dtype, {2, 3, 2 * pairs}, layout);
  Values omega;
  for (int64_t i = 0; i < pairs; ++i) {
    omega.push_back(round_to(
        DType::f32, std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs))));
  }
  positions.set(position);
  frequencies.set(omega);
  const auto tables = run(*device, {&cos, &sin}, [&] {
    device->ops().rotary_table(cos, sin, positions, frequencies, scaling);
  });
  Values exact[2], model[2], bound;
  for (const double p : position) {
    for (int64_t i = 0; i < 2 * pairs; ++i) {
      const double angle = round_to(DType::f32, round_to(DType::f32, p) * omega[index(i % pairs)]);
      exact[0].push_back(std::cos(angle) * scaling);
      exact[1].push_back(std::sin(angle) * scaling);
      bound.push_back(scaling * (rounding_unit(dtype) + 3 * kU32));
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    require_close(tables[i], exact[i], bound);
    for (const double value : exact[i]) model[i].push_back(round_to(dtype, value));
    require_conforms(dtype, tables[i], model[i], {});
  }
}

TEST_CASE("rotary: three roundings, both styles, partial, any layout, in place") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const auto style = GENERATE(RotaryStyle::half, RotaryStyle::interleaved);
  const Layout layout = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const int64_t r = GENERATE(0, 2, 26, 64), table_batch = GENERATE(1, 2);
  constexpr int64_t batch = 2, heads = 3, tokens = 5, width = 64;
  const Values x = random_values(dtype, batch * heads * tokens * width, 1);
  const Values c = random_values(dtype, table_batch * tokens * r, 2);
  const Values s = random_values(dtype, table_batch * tokens * r, 3);
  Guarded in(*device, dtype, {batch, heads, tokens, width}, layout);
  Guarded cos(*device, dtype, {table_batch, tokens, r}),
      sin(*device, dtype, {table_batch, tokens, r});
  Guarded out(*device, dtype, {batch, heads, tokens, width}, layout);
  in.set(x);
  cos.set(c);
  sin.set(s);
  const Values y = run(*device, {&out}, [&] { device->ops().rotary(out, in, cos, sin, style); })[0];
  const auto R = [&](double v) { return round_to(dtype, v); };
  Values model = x;
  for (int64_t row = 0; row < batch * heads * tokens; ++row) {
    const int64_t b = row / (heads * tokens) % table_batch, t = row % tokens;
    for (int64_t i = 0; i < r / 2; ++i) {
      const bool half = style == RotaryStyle::half;
      const size_t first = index(row * width + (half ? i : 2 * i));
      const size_t second = index(row * width + (half ? i + r / 2 : 2 * i + 1));
      const size_t one = index((b * tokens + t) * r + i), two = half ? one + index(r / 2) : one;
      model[first] = R(R(x[first] * c[one]) - R(x[second] * s[one]));
      model[second] = R(R(x[second] * c[two]) + R(x[first] * s[two]));
    }
  }
  // The contract fixes every rounding: float32 too agrees to the bit.
  REQUIRE(y == model);
  out.set(x);
  device->ops().rotary(out, out, cos, sin, style);
  REQUIRE(out.get() == y);
}

TEST_CASE("rotary: refuses tables that do not fit") {
  const auto device = open_test_device("cpu");
  Guarded x(*device, DType::f32, {1, 1, 3, 8}), wide(*device, DType::f32, {1, 3, 10});
  Guarded odd(*device, DType::f32, {1, 3, 7}), late(*device, DType::f32, {1, 4, 8});
  const auto style = RotaryStyle::half;
  REQUIRE_THROWS_AS(device->ops().rotary(x, x, wide, wide, style), UsageError);
  REQUIRE_THROWS_AS(device->ops().rotary(x, x, odd, odd, style), UsageError);
  REQUIRE_THROWS_AS(device->ops().rotary(x, x, late, late, style), UsageError);
}

}  // namespace
}  // namespace plumb
