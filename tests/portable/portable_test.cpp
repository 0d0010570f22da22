// Memory, texts of kernels, and what a device says that lacks a kernel.
#include <cmath>
#include <cstring>

#include "kernels/ops/ops.h"
#include "kernels/portable/portable_device.h"
#include "tests/catch.h"

namespace plumb::portable {
namespace {

using Catch::Contains;

constexpr size_t kMiB = size_t{1} << 20;

// Chunks at made-up addresses, until there is none.
struct Chunks {
  size_t most = SIZE_MAX;
  std::vector<size_t> made;
  uint64_t operator()(size_t bytes) {
    if (bytes > most) throw DeviceError("none");
    made.push_back(bytes);
    return made.size() << 40;
  }
};

TEST_CASE("portable pool: tensors share a chunk, and give it back") {
  Pool pool;
  Chunks chunks;
  const auto make = [&](size_t bytes) { return chunks(bytes); };
  const uint64_t a = pool.take(1000, make), b = pool.take(0, make), c = pool.take(1, make);
  CHECK(chunks.made == std::vector<size_t>{64 * kMiB});
  CHECK(b == a + 1024);
  CHECK(c == b + 256);
  pool.give(a);
  pool.give(c);
  pool.give(b);
  CHECK(pool.take(64 * kMiB, make) == a);
  CHECK(chunks.made.size() == 1);
}

TEST_CASE("portable pool: chunks double, and neighbouring ones stay apart") {
  Pool pool;
  Chunks chunks;
  const auto make = [&](size_t bytes) { return chunks(bytes); };
  const uint64_t a = pool.take(64 * kMiB, make), b = pool.take(1, make);
  CHECK(chunks.made == std::vector<size_t>{64 * kMiB, 128 * kMiB});
  pool.give(a);
  pool.give(b);
  pool.take(129 * kMiB, make);
  CHECK(chunks.made.back() == 256 * kMiB);
}

TEST_CASE("portable pool: where a whole chunk is too much, what is asked for is enough") {
  Pool pool;
  Chunks chunks{.most = kMiB, .made = {}};
  const auto make = [&](size_t bytes) { return chunks(bytes); };
  pool.take(kMiB, make);
  CHECK(chunks.made == std::vector<size_t>{kMiB});
  CHECK_THROWS_AS(pool.take(2 * kMiB, make), DeviceError);
}

TEST_CASE("portable: a kernel's text has what it includes, once") {
  const KernelSource& source = kernel_source("map");
  CHECK(source.threads == 256);
  CHECK_THAT(source.text, !Contains("#include"));
  CHECK_THAT(source.text, Contains("// scaled_add") && Contains("FUNCTION float exponential("));
  CHECK_THROWS_WITH(kernel_source("nothing"), "[portable] this build has no nothing.k");
}

// A device whose arithmetic is what a test says it is.
struct Arithmetic final : Driver {
  Behaviour is;
  bool contracts = false;
  std::vector<char> memory = std::vector<char>(64);
  mutable bool split = false;

  std::string describe() const override { return "a device"; }
  bool is_cpu() const override { return true; }
  void use_split_products() override { split = true; }
  uint64_t allocate(size_t bytes) override {
    memory.resize(bytes);
    return reinterpret_cast<uint64_t>(memory.data());
  }
  void release(uint64_t) override {}
  void upload(uint64_t to, const void* from, size_t n) override {
    std::memcpy(reinterpret_cast<void*>(to), from, n);
  }
  void download(void* to, uint64_t from, size_t n) override {
    std::memcpy(to, reinterpret_cast<void*>(from), n);
  }
  void fill(uint64_t, uint8_t, size_t) override {}
  void launch(const Kernel&, uint32_t, const void* arguments, size_t) override {
    const auto& p = *static_cast<const ProbeArguments*>(arguments);
    const float x = *reinterpret_cast<float*>(p.x), y = *reinterpret_cast<float*>(p.y);
    const float product = x * x, tiny = is.keeps_subnormals ? x * y : 0;
    const float fused = std::fma(x, x, y), rounded = product + y;
    const float answers[] = {is.fma_rounds_once ? fused : rounded, contracts ? fused : rounded,
                             tiny, is.keeps_infinities && x != x ? 1.0f : 0.0f, x + y};
    *reinterpret_cast<float*>(p.to) = answers[p.which];
  }
  void synchronize() override {}
  double time(const std::function<void()>&) override { return 0; }
};

TEST_CASE("portable: a device says what its arithmetic does") {
  auto driver = std::make_unique<Arithmetic>();
  driver->is = {.fma_rounds_once = false, .keeps_subnormals = false};
  const Arithmetic& opened = *driver;
  const PortableDevice device("test:0", std::move(driver));
  CHECK(device.describe() == "a device, fma rounds twice, subnormals are flushed");
  CHECK(opened.split);
  CHECK(PortableDevice("test:0", std::make_unique<Arithmetic>()).describe() ==
        "a device, fma rounds once, subnormals are kept");
}

TEST_CASE("portable: a device that loses NaN, or contracts, cannot be opened") {
  auto driver = std::make_unique<Arithmetic>();
  driver->is.keeps_infinities = false;
  CHECK_THROWS_WITH(PortableDevice("test:0", std::move(driver)),
                    "[device] test:0: a device: its arithmetic loses infinities or NaN, which "
                    "masks need");
  driver = std::make_unique<Arithmetic>();
  driver->contracts = true;
  CHECK_THROWS_WITH(PortableDevice("test:0", std::move(driver)),
                    Contains("contracts products and sums"));
}

TEST_CASE("portable: an op without a kernel is unsupported by its name") {
  PortableDevice device("test:0", std::make_unique<Arithmetic>());
  const Tensor x = device.allocate(DType::f32, {4}), wide = device.allocate(DType::f64, {4});
  CHECK_THROWS_MATCHES(device.ops().normal(x, {}), Unsupported,
                       Catch::Message("[normal] test:0 has no kernel for it"));
  CHECK_THROWS_MATCHES(device.ops().add(wide, wide, wide), Unsupported,
                       Catch::Message("[add] f64 on test:0; known: f32, f16, bf16"));
}

}  // namespace
}  // namespace plumb::portable
