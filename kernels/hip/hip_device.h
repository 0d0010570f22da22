// AMD GPUs: "hip:0", "hip:1", ...
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

// One row per GPU, or a single row "hip" with the reason why there is none.
std::vector<DeviceStatus> list_hip_devices();

// `name` is "hip" (the first) or "hip:N". Throws DeviceError with the reason and what to do.
std::unique_ptr<Device> open_hip_device(const std::string& name);

}  // namespace plumb
