// "vulkan:N": the portable kernels on Vulkan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

// Every device of every driver, GPUs before CPUs, which are no contestants; or one row with the
// reason why there is none.
std::vector<DeviceStatus> list_vulkan_devices();

// "vulkan" means the first. Throws UsageError for a name that is none, DeviceError where it cannot
// be opened.
std::unique_ptr<Device> open_vulkan_device(const std::string& name);

}  // namespace plumb
