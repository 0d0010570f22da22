// Vulkan 1.2 as a driver of the portable kernels: buffers with device addresses, so that no
// descriptors are needed, and one queue.
#pragma once

#include <memory>

#include "kernels/portable/driver.h"
#include "kernels/vulkan/shaders.h"
#include "kernels/vulkan/vulkan_api.h"

namespace plumb::vulkan {

// Throws DeviceError with the reason and what to do.
std::unique_ptr<portable::Driver> open_driver(int ordinal, PFN_vkGetInstanceProcAddr entry,
                                              FindShader shader = embedded_shader);

}  // namespace plumb::vulkan
