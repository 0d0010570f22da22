// Between token ids and logits a GPU allocates nothing, copies nothing and never makes the host
// wait, once the scratch memory has grown.
#include "harness/model/inference.h"
#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

TEST_CASE("no allocation, copy or wait between token ids and logits") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    for (const char* tiny : {"tiny:llama-a1", "tiny:gemma2-a4"}) {
      const harness::ModelFolder folder(harness::find_model(tiny));
      const auto model = folder.load(*device, DType::f32);
      blocks::Sequence sequence = model->begin(*device, 1, 40);
      blocks::Context ctx{device->ops()};
      const auto run = [&](int64_t tokens) {
        const Tensor ids = device->allocate(DType::i64, {1, tokens});
        device->fill(ids, 0);
        const Tensor logits = device->allocate(DType::f32, {1, 1, model->vocabulary()});
        const DeviceCounters before = *device->counters();
        model->forward(ctx, logits, ids, sequence);
        return *device->counters() - before;
      };
      run(9);
      for (int step = 0; step < 12; ++step) {  // windows of 5 slots overflow on the way
        INFO(tiny << " on " << name << ", step " << step);
        CHECK(run(1) == DeviceCounters{});
      }
    }
  }
}

}  // namespace
}  // namespace plumb
