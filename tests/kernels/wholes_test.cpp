// Whole numbers and float64, where doubles or float32 would be too narrow: wrapping as torch does,
// and what rows do not take. What they give in general: the suite "ops", test_op_recordings.py.
#include "kernels/ops/wholes.h"

#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/ops/dtypes.h"
#include "tests/catch.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

using Catch::Contains;

constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;

Tensor of_wholes(Device& device, const std::vector<int64_t>& values) {
  const Tensor out = device.allocate(DType::i64, {std::ssize(values)});
  device.upload(out, values.data());
  return out;
}

std::vector<int64_t> got(Device& device, const Tensor& t) {
  std::vector<int64_t> out(static_cast<size_t>(t.numel()));
  device.synchronize();
  device.download(out.data(), t);
  return out;
}

TEST_CASE("i64 is computed in 64 bits and wraps around") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  const Tensor a = of_wholes(*device, {kMost, kLeast, (int64_t{1} << 53) + 1, -3});
  const Tensor b = of_wholes(*device, {1, -1, 2, 7}), out = of_wholes(*device, {9, 9, 9, 9});
  const auto of = [&](OpId op) {
    ops.binary(op, out, a, b);
    return got(*device, out);
  };
  using W = std::vector<int64_t>;
  CHECK(of(OpId::add) == W{kLeast, kMost, (int64_t{1} << 53) + 3, 4});
  CHECK(of(OpId::sub) == W{kMost - 1, kLeast + 1, (int64_t{1} << 53) - 1, -10});
  CHECK(of(OpId::mul) == W{kMost, kLeast, (int64_t{1} << 54) + 2, -21});
  CHECK(of(OpId::minimum) == W{1, kLeast, 2, -3});
  ops.unary(OpId::neg, out, a);
  CHECK(got(*device, out) == W{-kMost, kLeast, -(int64_t{1} << 53) - 1, 3});
  ops.unary(OpId::abs, out, a);
  CHECK(got(*device, out) == W{kMost, kLeast, (int64_t{1} << 53) + 1, 3});
  ops.cumsum(out, a, 0);
  CHECK(got(*device, out) == W{kMost, -1, int64_t{1} << 53, (int64_t{1} << 53) - 3});
  const Tensor one = of_wholes(*device, {0});
  ops.reduce(OpId::max, one, of_wholes(*device, {kLeast, kLeast}), {0});
  CHECK(got(*device, one) == W{kLeast});
  ops.reduce(OpId::argmin, one, of_wholes(*device, {5, kLeast, kLeast}), {0});
  CHECK(got(*device, one) == W{1});
}

TEST_CASE("narrow whole numbers keep the lowest bits and add up to i64") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  const Guarded a = holding(*device, DType::u8, {3}, {250, 1, 128});
  const Guarded b = holding(*device, DType::u8, {3}, {10, 2, 128});
  Guarded out(*device, DType::u8, {3}), flags(*device, DType::boolean, {3});
  const auto of = [&](Guarded& to, auto op) { return run(*device, {&to}, op)[0]; };
  CHECK(of(out, [&] { ops.add(out, a, b); }) == Values{4, 3, 0});
  CHECK(of(out, [&] { ops.binary(OpId::sub, out, a, b); }) == Values{240, 255, 0});
  CHECK(of(out, [&] { ops.mul(out, a, b); }) == Values{250 * 10 % 256, 2, 0});
  CHECK(of(out, [&] { ops.unary(OpId::neg, out, a); }) == Values{6, 255, 128});
  CHECK(of(flags, [&] { ops.binary(OpId::lt, flags, b, a); }) == Values{1, 0, 0});
  Guarded sum(*device, DType::i64, {1});
  CHECK(of(sum, [&] { ops.reduce(OpId::sum, sum, a, {0}); }) == Values{379});
  CHECK(of(sum, [&] { ops.reduce(OpId::prod, sum, a, {0}); }) == Values{32000});
  const Guarded p = holding(*device, DType::boolean, {3}, {1, 0, 1});
  const Guarded q = holding(*device, DType::boolean, {3}, {1, 0, 0});
  CHECK(of(flags, [&] { ops.add(flags, p, q); }) == Values{1, 0, 1});
  CHECK(of(flags, [&] { ops.mul(flags, p, q); }) == Values{1, 0, 0});
  CHECK(of(sum, [&] { ops.reduce(OpId::sum, sum, p, {0}); }) == Values{2});
}

TEST_CASE("i64 and f64 keep their order where float32 has one number for several") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  const int64_t large = int64_t{1} << 60;
  const Tensor x = of_wholes(*device, {large, large + 2, kLeast, large + 1, kMost});
  const Tensor values = of_wholes(*device, {0, 0, 0}), ids = of_wholes(*device, {0, 0, 0});
  ops.top_k(values, ids, x, true);
  CHECK(got(*device, ids) == std::vector<int64_t>{4, 1, 3});
  CHECK(got(*device, values) == std::vector<int64_t>{kMost, large + 2, large + 1});
  ops.top_k(values, ids, x, false);
  CHECK(got(*device, ids) == std::vector<int64_t>{2, 0, 3});
  const Guarded y = holding(*device, DType::f64, {4}, {1, 1 + 0x1p-52, std::nan(""), 1 - 0x1p-53});
  Guarded top(*device, DType::f64, {2}), places(*device, DType::i64, {2});
  CHECK(run(*device, {&places}, [&] { ops.top_k(top, places, y, true); })[0] == Values{2, 1});
  CHECK(run(*device, {&places}, [&] { ops.top_k(top, places, y, false); })[0] == Values{3, 0});
}

TEST_CASE("products of 8 bits: sums of i8 and u8 are exact, of f8 float32") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::i8, DType::u8, DType::f8_e4m3, DType::f8_e5m2, DType::f64);
  Ops& ops = device->ops();
  constexpr int64_t kInner = 300;
  const double least = dtype == DType::i8 ? -128 : dtype == DType::u8 ? 255 : -1.5;
  const Guarded a = holding(*device, dtype, {2, kInner}, Values(2 * kInner, least));
  const Guarded b = holding(*device, dtype, {kInner, 3}, Values(3 * kInner, least));
  const DType sums = sums_of(dtype);
  CHECK(sums == (dtype == DType::f64 ? DType::f64 : is_whole(dtype) ? DType::i32 : DType::f32));
  const Guarded c = holding(*device, sums, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Guarded bias = holding(*device, sums, {3}, {10, 20, 30});
  Guarded out(*device, sums, {2, 3});
  GemmParams params;
  params.beta = 1;
  const double product = least * least * kInner;
  const Values found = run(*device, {&out}, [&] { ops.gemm(out, a, b, c, bias, params); })[0];
  CHECK(found ==
        Values{product + 11, product + 22, product + 33, product + 14, product + 25, product + 36});
  if (!is_whole(dtype)) return;
  params.alpha = 0.5;
  REQUIRE_THROWS_WITH(ops.gemm(out, a, b, c, bias, params), Contains("alpha 0.5"));
}

TEST_CASE("a dtype that an op's row lacks is refused by name") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  const Guarded x(*device, DType::i32, {3}), flags(*device, DType::boolean, {3});
  const Guarded codes(*device, DType::i8, {3});
  REQUIRE_THROWS_WITH(ops.unary(OpId::exp, x, x),
                      Contains("[exp] x is i32, expected a float dtype"));
  REQUIRE_THROWS_WITH(
      ops.add(codes, codes, codes),
      Contains("[add] out is i8, expected a float dtype, u8, i32, u32, i64 or bool"));
  REQUIRE_THROWS_WITH(ops.binary(OpId::sub, flags, flags, flags),
                      Contains("[sub] out is bool, expected a float dtype, u8, i32, u32 or i64"));
  REQUIRE_THROWS_WITH(ops.reduce(OpId::sum, flags, flags, {0}),
                      Contains("[sum] out is bool, expected i64"));
}

TEST_CASE("formulas have whole numbers where a row says so") {
  static_assert(takes_wholes(Formula::add) && takes_wholes(Formula::where));
  static_assert(!takes_wholes(Formula::exp) && !takes_wholes(Formula::div));
  static_assert(takes_wholes(Reduction::prod) && !takes_wholes(Reduction::mean));
  constexpr Wholes m;
  STATIC_REQUIRE(formulas::add::of(m, Whole{kMost}, Whole{1}).i == kLeast);
  STATIC_REQUIRE(m.abs(Whole{kLeast}).i == kLeast);
}

}  // namespace
}  // namespace plumb
