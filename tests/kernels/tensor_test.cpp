#include "kernels/core/tensor.h"

#include "kernels/core/arena.h"
#include "kernels/core/error.h"
#include "tests/kernels/test_devices.h"

namespace plumb {
namespace {

TEST_CASE("shape: ranks, negative axes, overflow") {
  const Shape shape{2, 3, 4};
  REQUIRE(shape.rank() == 3);
  REQUIRE(shape[-1] == 4);
  REQUIRE(shape.numel() == 24);
  REQUIRE(Shape().numel() == 1);
  REQUIRE_FALSE(shape == Shape{2, 3});
  REQUIRE_THROWS_AS(shape[3], UsageError);
  REQUIRE_THROWS_AS(shape[-4], UsageError);
  REQUIRE_THROWS_AS(Shape({1, -1}), UsageError);
  REQUIRE_THROWS_AS(Shape(std::vector<int64_t>(9, 1)), UsageError);
  REQUIRE_THROWS_AS(Shape({int64_t{1} << 32, int64_t{1} << 31}).numel(), UsageError);
  REQUIRE(Shape({int64_t{1} << 31, int64_t{1} << 31}).numel() == int64_t{1} << 62);
}

TEST_CASE("tensor: views share storage and keep to it") {
  const Tensor t = host_tensor(DType::f32, {2, 3, 4});
  for (int i = 0; i < 24; ++i) t.data<float>()[i] = static_cast<float>(i);
  REQUIRE(t.contiguous());
  REQUIRE(reinterpret_cast<uintptr_t>(t.raw()) % 64 == 0);
  const Tensor part = t.slice(1, 1, 3);
  REQUIRE(part.shape() == Shape{2, 2, 4});
  REQUIRE(part.data<float>()[0] == 4);
  REQUIRE_FALSE(part.contiguous());
  REQUIRE_THROWS_AS(part.view({4, 4}), UsageError);
  const Tensor swapped = t.transpose(0, 1);
  REQUIRE(swapped.shape() == Shape{3, 2, 4});
  REQUIRE(swapped.data<float>()[swapped.stride(0) + swapped.stride(1)] == 16);
  REQUIRE_THROWS_AS(t.transpose(0, 2), UsageError);
  REQUIRE(t.view({24}).data<float>()[23] == 23);
  REQUIRE_THROWS_AS(t.view({23}), UsageError);
  REQUIRE_THROWS_AS(t.slice(0, 1, 3), UsageError);
  REQUIRE_THROWS_AS(t.slice(0, 2, 1), UsageError);
  const Tensor wide = t.slice(0, 0, 1).expand(0, 5);
  REQUIRE(wide.shape() == Shape{5, 3, 4});
  REQUIRE(wide.stride(0) == 0);
  REQUIRE_THROWS_AS(t.expand(0, 5), UsageError);
  REQUIRE(t.reinterpret(DType::u8, {96}).raw() == t.raw());
  REQUIRE_THROWS_AS(t.reinterpret(DType::u8, {95}), UsageError);
  int rows = 0;
  for_each_row(swapped, [&](int64_t offset) {
    const int a = rows / 2, b = rows % 2;
    REQUIRE(offset == 4 * a + 12 * b);
    ++rows;
  });
  REQUIRE(rows == 6);
  for_each_row(t.slice(1, 0, 0), [](int64_t) { FAIL("a row of an empty tensor"); });
}

TEST_CASE("tensor: what does not fit its storage is refused") {
  const auto storage = host_storage(64);
  REQUIRE_NOTHROW(Tensor(storage, DType::f32, {16}));
  REQUIRE_NOTHROW(Tensor(storage, DType::f32, {15}, 4));
  REQUIRE_THROWS_AS(Tensor(storage, DType::f32, {16}, 4), UsageError);
  REQUIRE_THROWS_AS(Tensor(storage, DType::f32, {17}), UsageError);
  REQUIRE_THROWS_AS(Tensor(storage, DType::f32, {1}, -4), UsageError);
  REQUIRE_THROWS_AS(Tensor(storage, DType::f64, {int64_t{1} << 61}), UsageError);
  REQUIRE_THROWS_AS(host_tensor(DType::f64, {int64_t{1} << 61}), UsageError);
  REQUIRE_THROWS_AS(host_storage(-1), UsageError);
}

TEST_CASE("device: allocation, upload, download, fill, ownership") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const Tensor t = device->allocate(DType::i32, {5});
  REQUIRE(reinterpret_cast<uintptr_t>(t.raw()) % 64 == 0);
  REQUIRE(t.storage().owner == device.get());
  const int32_t values[5] = {1, 2, 3, 4, 5};
  int32_t back[5] = {};
  device->upload(t, values);
  device->download(back, t);
  REQUIRE(back[4] == 5);
  device->fill(t, 0xff);
  device->download(back, t);
  REQUIRE(back[0] == -1);
  REQUIRE_NOTHROW(device->allocate(DType::f32, {0}));
  REQUIRE_THROWS_AS(device->allocate(DType::f64, {int64_t{1} << 61}), UsageError);
#ifndef __SANITIZE_ADDRESS__  // which ends the process on sizes that malloc refuses
  REQUIRE_THROWS_AS(device->allocate(DType::f64, {int64_t{1} << 55}), DeviceError);
#endif
  REQUIRE_FALSE(device->describe().empty());
}

TEST_CASE("arena: scopes nest, memory is used again, poison shows") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  if (device->counters()) return;  // a GPU's memory cannot be looked at from here
  Arena arena(*device);
  arena.set_poison(0xab);
  const void* first = nullptr;
  {
    Arena::Scope scope(arena);
    const Tensor a = arena.take(DType::f32, {3});
    first = a.raw();
    REQUIRE(a.data<uint8_t>()[11] == 0xab);
    a.data<uint8_t>()[0] = 1;
    const void* inner = nullptr;
    {
      Arena::Scope nested(arena);
      inner = arena.take(DType::f32, {3}).raw();
      REQUIRE(inner != first);
      REQUIRE(reinterpret_cast<uintptr_t>(inner) % 64 == 0);
    }
    REQUIRE(arena.take(DType::f32, {3}).raw() == inner);
    // Larger than the first chunk: a second one, and both stay valid.
    const Tensor big = arena.take(DType::u8, {int64_t{3} << 20});
    big.data<uint8_t>()[(int64_t{3} << 20) - 1] = 7;
    REQUIRE(a.data<uint8_t>()[0] == 1);
  }
  Arena::Scope scope(arena);
  const Tensor again = arena.take(DType::f32, {3});
  REQUIRE(again.raw() == first);
  REQUIRE(again.data<uint8_t>()[0] == 0xab);
  REQUIRE_THROWS_AS(arena.take(DType::f64, {int64_t{1} << 61}), UsageError);
}

}  // namespace
}  // namespace plumb
