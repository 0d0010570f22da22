// A GPU kernel with a missing barrier, run by the checker of the emulated GPU: prints its report.
#include <iostream>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kCount = 128;

__global__ void reverse(float* out, const float* in) {
  auto& tile = block_shared<float[kCount]>();
  const unsigned i = thread_index().x;
  tile[i] = in[i];
  out[i] = tile[kCount - 1 - i];
}

}  // namespace

int run() {
  use_device(64);  // the wave width
  Stream stream = make_stream();
  const std::vector<float> values(kCount, 1.0f);
  const size_t bytes = kCount * sizeof(float);
  auto* in = static_cast<float*>(memory_allocate(bytes));
  auto* out = static_cast<float*>(memory_allocate(bytes));
  copy_to_device(in, values.data(), bytes, stream);
  int status = 0;
  try {
    launch<reverse>("reverse", {1}, {kCount}, 0, stream, out, in);
  } catch (const DeviceError& error) {
    std::cout << error.what() << "\n";
    status = 1;
  }
  memory_free(in);
  memory_free(out);
  end_stream(stream);
  return status;
}

}  // namespace plumb::PLUMB_GPU_VENDOR

int main() { return plumb::PLUMB_GPU_VENDOR::run(); }
