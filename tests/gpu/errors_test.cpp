// What goes wrong with a GPU is said in words: which device, both numbers, what to do.
#include "kernels/core/error.h"
#include "kernels/gpu/device_list.h"
#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

using Catch::Contains;

const std::vector<DeviceStatus> kTwo = {{"cuda:0", true, "GPU A"},
                                        {"cuda:1", false, "GPU B; too old"}};

TEST_CASE("a GPU by name") {
  REQUIRE(usable_gpu(kTwo, "cuda") == 0);
  REQUIRE(usable_gpu(kTwo, "cuda:0") == 0);
  REQUIRE_THROWS_WITH(usable_gpu(kTwo, "cuda:1"), Contains("cuda:1") && Contains("too old"));
  REQUIRE_THROWS_WITH(usable_gpu(kTwo, "cuda:2"), Contains("cuda:2") && Contains("2 cuda GPU(s)"));
  REQUIRE_THROWS_AS(usable_gpu(kTwo, "cuda:2"), DeviceError);
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "cuda:99999"}) {
    REQUIRE_THROWS_AS(usable_gpu(kTwo, name), UsageError);
  }
  const std::vector<DeviceStatus> none = {{"cuda", false, "no driver"}};
  REQUIRE_THROWS_WITH(usable_gpu(none, "cuda:0"), Contains("no driver"));
}

TEST_CASE("a GPU that is absent says why") {
  for (const DeviceStatus& status : list_devices()) {
    if (status.usable) continue;
    INFO(status.name);
    REQUIRE(status.text.size() > 10);
    REQUIRE_THROWS_WITH(open_device(status.name), Contains(status.text));
  }
}

TEST_CASE("too much memory is an error, and the device stays usable") {
  for (const std::string& name : gpu_devices()) {
    if (is_emulated(name)) continue;  // the host may hand out more than it has
    const auto device = open_device(name);
    REQUIRE_THROWS_WITH(device->allocate(DType::f32, {int64_t{1} << 40}),
                        Contains("4398046511") && Contains("bytes") && Contains("free"));
    const Tensor t = device->allocate(DType::f32, {8});
    device->fill(t, 0);
    device->ops().add(t, t, t);
    device->synchronize();
  }
}

TEST_CASE("tensors of two devices in one op are refused") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name), cpu = open_device("cpu");
    const Tensor here = device->allocate(DType::f32, {8}), there = cpu->allocate(DType::f32, {8});
    REQUIRE_THROWS_WITH(device->ops().add(here, here, there), Contains("is not on device " + name));
    REQUIRE_THROWS_AS(cpu->ops().add(there, there, here), UsageError);
  }
}

}  // namespace
}  // namespace plumb
