#include "kernels/vulkan/vulkan_device.h"

#include "kernels/gpu/device_list.h"
#include "kernels/portable/portable_device.h"
#include "kernels/vulkan/physical_devices.h"
#include "kernels/vulkan/vulkan_driver.h"

namespace plumb {

std::vector<DeviceStatus> list_vulkan_devices() {
  if (!vulkan::has_shaders()) return {{"vulkan", false, std::string(vulkan::kNoShaders), false}};
  std::vector<DeviceStatus> out;
  try {
    const vulkan::Instance instance(vulkan::load_vulkan());
    for (const vulkan::PhysicalDevice& device : instance.devices()) {
      const bool usable = device.problem.empty();
      out.push_back({text("vulkan:", out.size()), usable,
                     usable ? device.description : device.problem, usable && !device.is_cpu});
    }
  } catch (const Error& error) {
    return {{"vulkan", false, error.what(), false}};
  }
  if (out.empty()) return {{"vulkan", false, "no device; vulkaninfo --summary lists them", false}};
  return out;
}

std::unique_ptr<Device> open_vulkan_device(const std::string& name) {
  const int number = gpu_number(name);
  require<DeviceError>(vulkan::has_shaders(), "vulkan", vulkan::kNoShaders);
  return std::make_unique<portable::PortableDevice>(
      text("vulkan:", number), vulkan::open_driver(number, vulkan::load_vulkan()));
}

}  // namespace plumb
