// embedding at its edges, and copies of every dtype.
#include <cmath>

#include "kernels/core/error.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

TEST_CASE("embedding: an id outside the table is an error with both numbers") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const int64_t wrong = GENERATE(int64_t{11}, int64_t{-1}, INT64_MAX, INT64_MIN);
  Guarded ids(*device, DType::i64, {3}), weight(*device, DType::f32, {11, 4}),
      out(*device, DType::f32, {3, 4});
  weight.set(Values(44, 1.0));
  const int64_t id[3] = {0, wrong, 1};
  device->upload(ids, id);
  const auto embed = [&] {
    device->ops().embedding(out, ids, weight);
    device->synchronize();
  };
  REQUIRE_THROWS_AS(embed(), UsageError);
  if (wrong > 100 || wrong < -100) return;
  REQUIRE_THROWS_WITH(embed(), Catch::Contains(std::to_string(wrong)) && Catch::Contains("11"));
}

TEST_CASE("embedding: no ids, an empty table") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Guarded ids(*device, DType::i64, {2, 0}), weight(*device, DType::f32, {0, 4}),
      out(*device, DType::f32, {2, 0, 4});
  REQUIRE_NOTHROW(run(*device, {&out}, [&] { device->ops().embedding(out, ids, weight); }));
  Guarded one(*device, DType::i64, {1}), row(*device, DType::f32, {1, 4});
  one.set({0});
  const auto embed = [&] {
    device->ops().embedding(row, one, weight);
    device->synchronize();
  };
  REQUIRE_THROWS_AS(embed(), UsageError);
}

TEST_CASE("copy: every dtype and layout, bit for bit") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = static_cast<DType>(GENERATE(range(0, static_cast<int>(DType::boolean) + 1)));
  const Layout from = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Layout to = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Shape shape = GENERATE(Shape{1}, Shape{4, 5, 33}, Shape{3, 0, 2}, Shape{2, 3, 1, 70});
  Guarded x(*device, dtype, shape, from), out(*device, dtype, shape, to);
  Values values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i % 2));
  x.set(values);
  run(*device, {&out}, [&] { device->ops().copy(out, x); });
  REQUIRE(out.bytes() == x.bytes());
}

TEST_CASE("copy_pair: two copies, of one layout or of two") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Layout from = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Layout to = GENERATE(Layout::contiguous, Layout::padded, Layout::exchanged);
  const Layout other = GENERATE(Layout::contiguous, Layout::exchanged);
  const Shape shape = GENERATE(Shape{4, 5, 32}, Shape{3, 0, 2}, Shape{2, 3, 1, 70});
  Guarded a(*device, dtype, shape, from), b(*device, dtype, shape, other);
  Guarded out_a(*device, dtype, shape, to), out_b(*device, dtype, shape, other);
  a.set(random_values(dtype, shape.numel(), 1));
  b.set(random_values(dtype, shape.numel(), 2));
  run(*device, {&out_a, &out_b}, [&] { device->ops().copy_pair(out_a, a, out_b, b); });
  REQUIRE(out_a.bytes() == a.bytes());
  REQUIRE(out_b.bytes() == b.bytes());
  Guarded narrow(*device, dtype, {1});
  REQUIRE_THROWS_AS(device->ops().copy_pair(out_a, a, narrow, b), UsageError);
}

TEST_CASE("copy: NaN payloads and negative zero survive") {
  const auto device = open_test_device("cpu");
  Guarded x(*device, DType::f32, {3}), out(*device, DType::f32, {3});
  const uint32_t bits[3] = {0x7f800001, 0x80000000, 0xffc12345};
  device->upload(x, bits);
  device->ops().copy(out, x);
  REQUIRE(out.bytes() == x.bytes());
}

}  // namespace
}  // namespace plumb
