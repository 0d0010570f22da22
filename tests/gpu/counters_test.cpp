// Inside a block a GPU allocates nothing, copies nothing and never makes the host wait: what a
// graph capture of a decode step needs.
#include <filesystem>

#include "harness/execution/execute.h"
#include "harness/recording/recording.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

std::string describe(const DeviceCounters& c) {
  return std::to_string(c.allocations) + " allocations, " + std::to_string(c.copies) + " copies, " +
         std::to_string(c.waits) + " waits";
}

void require_quiet(const harness::Recording& recording, Device& device, OpSet fused) {
  for (const harness::Checkpoint& checkpoint : recording.checkpoints()) {
    // Frequencies are computed on the host, from a config.
    if (checkpoint.block == "rotary_frequencies") continue;
    const blocks::BlockEntry& block = *blocks::find_block(checkpoint.block);
    const harness::HostOperands operands =
        harness::read_operands(recording, checkpoint, recording.dtype());
    harness::RunSetup setup;
    setup.fused = fused;
    harness::execute(block, checkpoint, operands, device,
                     setup);  // the first run may grow the scratch memory
    const harness::Execution second = harness::execute(block, checkpoint, operands, device, setup);
    INFO(checkpoint.id << " on " << device.name() << ": " << describe(second.counters));
    CHECK(second.counters == DeviceCounters{});
  }
}

TEST_CASE("no allocation, copy or wait inside a block") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    REQUIRE(device->counters().has_value());
    for (const char* folder : {"gemma2-a4/decode-f32", "llama-a1/decode-bf16"}) {
      const harness::Recording recording =
          harness::Recording::open(std::filesystem::path("fixtures") / folder);
      require_quiet(recording, *device, OpSet().set());
      require_quiet(recording, *device, OpSet());
    }
  }
}

TEST_CASE("the counters count") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    const DeviceCounters before = *device->counters();
    const Tensor t = device->allocate(DType::f32, {1 << 20});
    std::vector<float> host(1 << 20, 1.0f);
    device->upload(t, host.data());
    device->download(host.data(), t);
    device->synchronize();
    REQUIRE(*device->counters() - before == DeviceCounters{1, 2, 1});
  }
}

}  // namespace
}  // namespace plumb
