#include "kernels/vulkan/vulkan_device.h"

#include "kernels/gpu/device_list.h"
#include "kernels/portable/portable_device.h"
#include "kernels/vulkan/physical_devices.h"
#include "kernels/vulkan/vulkan_driver.h"

namespace plumb {

namespace {

// What the device's arithmetic does is asked by a kernel.
DeviceStatus status_of(const std::string& name, const vulkan::PhysicalDevice& device) {
  if (!device.problem.empty()) return {name, false, device.problem, false};
  try {
    return {name, true, open_vulkan_device(name)->describe(), !device.is_cpu};
  } catch (const Error& error) {
    return {name, false, error.what(), false};
  }
}

}  // namespace

std::vector<DeviceStatus> list_vulkan_devices() {
  std::vector<DeviceStatus> out;
  try {
    require<DeviceError>(vulkan::has_shaders(), "vulkan", vulkan::kNoShaders);
    const vulkan::Instance instance(vulkan::load_vulkan());
    for (const vulkan::PhysicalDevice& device : instance.devices()) {
      out.push_back(status_of(text("vulkan:", out.size()), device));
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
