// Vulkan's driver alone: memory, launches, graphs and the clock, by the kernel probe.k.
#include <cmath>

#include "kernels/vulkan/vulkan_device.h"
#include "tests/vulkan/vulkan_devices.h"

namespace plumb::vulkan {
namespace {

constexpr int kCount = 1000;
constexpr uint64_t kBytes = kCount * sizeof(float);

std::vector<float> numbers(int count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i % 1000) - 300.5f;
  return out;
}

TEST_CASE("Vulkan: bytes come back, from any place in a chunk") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t chunk = driver->allocate(1 << 20);
  REQUIRE(chunk % 256 == 0);
  driver->fill(chunk, 0, 1 << 20);
  const std::string given = "nineteen characters";
  for (uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{4099}, (uint64_t{1} << 20) - 19}) {
    driver->upload(chunk + at, given.data(), given.size());
    std::string back(given.size(), ' ');
    driver->download(back.data(), chunk + at, back.size());
    REQUIRE(back == given);
  }
  REQUIRE_THROWS_WITH(driver->upload(chunk + (1 << 20) - 18, given.data(), given.size()),
                      Catch::Contains("19 bytes") && Catch::Contains("are not memory"));
  REQUIRE_THROWS_AS(driver->upload(8, given.data(), given.size()), DeviceError);
}

TEST_CASE("Vulkan: fill takes any start and length") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t chunk = driver->allocate(256);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t bytes = 0; bytes < 13; ++bytes) {
      driver->fill(chunk, 1, 256);
      driver->fill(chunk + from, 0xab, bytes);
      std::vector<uint8_t> back(256), expected(256, 1);
      driver->download(back.data(), chunk, back.size());
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(from), bytes, uint8_t{0xab});
      REQUIRE(back == expected);
    }
  }
}

TEST_CASE("Vulkan: uploads larger than the staging buffer arrive whole") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const std::vector<float> given = numbers((16 << 20) / 4 + 1001);
  const uint64_t chunk = driver->allocate(given.size() * sizeof(float));
  driver->upload(chunk, given.data(), given.size() * sizeof(float));
  REQUIRE(floats_at(*driver, chunk, given.size()) == given);
}

TEST_CASE("Vulkan: launches are in order") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t x = driver->allocate(1 << 20), one = x + (1 << 19);
  const std::vector<float> ones(kCount, 1.0f);
  driver->fill(x, 0, kBytes);
  driver->upload(one, ones.data(), kBytes);
  // More than fit among the arguments of one submission.
  constexpr int kLaunches = 20000;
  for (int i = 0; i < kLaunches; ++i) launch_probe(*driver, {x, x, one, 64, kSum});
  REQUIRE(floats_at(*driver, x, 64) == std::vector<float>(64, float{kLaunches}));
}

TEST_CASE("Vulkan: more groups than a side of a grid may have") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  constexpr int count = 64 * 65535 + 100;
  const uint64_t bytes = count * sizeof(float);
  const uint64_t x = driver->allocate(bytes), to = driver->allocate(bytes + 256 * 4);
  const std::vector<float> given = numbers(count);
  driver->upload(x, given.data(), bytes);
  driver->fill(to, 0xff, bytes + 256 * 4);
  launch_probe(*driver, {to, x, x, count, kSum});
  std::vector<float> expected = given;
  for (float& v : expected) v += v;
  REQUIRE(floats_at(*driver, to, count) == expected);
  for (float v : floats_at(*driver, to + bytes, 256)) REQUIRE(std::isnan(v));  // surplus groups
  REQUIRE_THROWS_AS(driver->launch(kProbe, 1u << 31, nullptr, 0), Unsupported);
}

TEST_CASE("Vulkan: a graph runs again with its own arguments") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t x = driver->allocate(1 << 20), one = x + (1 << 19);
  const std::vector<float> ones(kCount, 1.0f);
  driver->upload(one, ones.data(), kBytes);
  driver->fill(x, 0, kBytes);
  constexpr int kLaunches = 3000;  // in several blocks of arguments
  auto graph = driver->capture([&] {
    for (int i = 0; i < kLaunches; ++i) launch_probe(*driver, {x, x, one, kCount, kSum});
  });
  REQUIRE(floats_at(*driver, x, 1).front() == 0);  // nothing has run
  graph->replay();
  launch_probe(*driver, {x, x, one, kCount, kSum});
  graph->replay();
  REQUIRE(floats_at(*driver, x, kCount) == std::vector<float>(kCount, 2.0f * kLaunches + 1));
  graph->replay();
  graph.reset();  // while it is queued
  REQUIRE(floats_at(*driver, x, 1).front() == 3.0f * kLaunches + 1);
}

TEST_CASE("Vulkan: a graph takes kernels only, and a failed one leaves the queue as it was") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t x = driver->allocate(1 << 10);
  float value = 3;
  for (const std::function<void()>& forbidden : std::vector<std::function<void()>>{
           [&] { driver->upload(x, &value, sizeof value); },
           [&] { driver->download(&value, x, sizeof value); }, [&] { driver->synchronize(); },
           [&] { driver->capture([] {}); }}) {
    REQUIRE_THROWS_AS(driver->capture(forbidden), UsageError);
    driver->upload(x, &value, sizeof value);
    REQUIRE(floats_at(*driver, x, 1).front() == 3);
  }
}

TEST_CASE("Vulkan: time is the work's") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  constexpr int count = 1 << 20;
  const uint64_t x = driver->allocate(count * sizeof(float));
  driver->fill(x, 0, count * sizeof(float));
  const auto launches = [&](int times) {
    return driver->time([&] {
      for (int i = 0; i < times; ++i) launch_probe(*driver, {x, x, x, count, kSum});
    });
  };
  launches(1);  // builds the kernel
  const double once = launches(1), often = launches(50);
  REQUIRE(once > 0);
  REQUIRE(often > 2 * once);
  REQUIRE(often < 60);
}

TEST_CASE("Vulkan: products of two factors are exact where fma rounds twice") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan());
  const uint64_t x = driver->allocate(256);
  const float given[] = {1 + 0x1p-12f, -(1 + 0x1p-11f)};  // the square less 1 + 2^-11 is 2^-24
  driver->upload(x, given, sizeof given);
  launch_probe(*driver, {x + 8, x, x + 4, 1, kFma});
  const float out = floats_at(*driver, x + 8, 1).front();
  REQUIRE((out == 0x1p-24f || out == 0));
  driver->use_split_products();  // pipelines are built again
  launch_probe(*driver, {x + 12, x, x + 4, 1, kFma});
  REQUIRE(floats_at(*driver, x + 12, 1).front() == out);
}

TEST_CASE("Vulkan: what the arithmetic does is in the description") {
  if (!can_run()) return;
  const std::vector<DeviceStatus> all = list_vulkan_devices();
  const size_t count = Instance(load_vulkan()).devices().size();
  REQUIRE(all.size() == count);
  bool cpu = false;
  for (const DeviceStatus& status : all) {
    if (!status.usable) continue;
    const auto device = open_vulkan_device(status.name);
    REQUIRE(device->name() == status.name);
    REQUIRE(device->describe() == status.text);
    REQUIRE_THAT(status.text, Catch::Contains("fma rounds ") && Catch::Contains("subnormals are "));
    REQUIRE_FALSE((cpu && status.contestant));  // CPUs come last
    cpu = cpu || !status.contestant;
  }
}

}  // namespace
}  // namespace plumb::vulkan
