// NVIDIA GPUs: "cuda:0", "cuda:1", ...
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

// One row per GPU, or a single row "cuda" with the reason why there is none.
std::vector<DeviceStatus> list_cuda_devices();

// `name` is "cuda" (the first) or "cuda:N". Throws DeviceError with the reason and what to do.
std::unique_ptr<Device> open_cuda_device(const std::string& name);

}  // namespace plumb
