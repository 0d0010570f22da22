#include "kernels/vulkan/vulkan_api.h"

#include <dlfcn.h>

#include "kernels/core/error.h"

namespace plumb::vulkan {
namespace {

std::string reason(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of the host's memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of the device's memory";
    case VK_ERROR_DEVICE_LOST: return "the device was lost (a kernel crashed or took too long)";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "no driver: install mesa-vulkan-drivers or that of the GPU's vendor";
    case VK_ERROR_INITIALIZATION_FAILED: return "the driver failed to start";
    case VK_ERROR_LAYER_NOT_PRESENT: return "a layer that was asked for is not installed";
    default: return text("VkResult ", static_cast<int>(result));
  }
}

}  // namespace

PFN_vkGetInstanceProcAddr load_vulkan(const char* library) {
  void* loader = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!loader) {
    throw DeviceError(text("[vulkan] no Vulkan loader (", library,
                           "): install libvulkan1 and a driver, for example mesa-vulkan-drivers"));
  }
  constexpr const char* entry = "vkGetInstanceProcAddr";
  void* symbol = dlsym(loader, entry);
  require<DeviceError>(symbol != nullptr, "vulkan", library, " lacks ", entry,
                       ": is it a Vulkan loader?");
  return reinterpret_cast<PFN_vkGetInstanceProcAddr>(symbol);
}

VulkanApi find_functions(PFN_vkGetInstanceProcAddr entry, VkInstance instance) {
  VulkanApi out;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(entry(instance, name));
    require<DeviceError>(function != nullptr, "vulkan", "the loader lacks ", name,
                         ": update libvulkan1");
  };
#define PLUMB_VULKAN_FIND(name) find(out.name, #name);
  PLUMB_VULKAN_FUNCTIONS(PLUMB_VULKAN_FIND)
#undef PLUMB_VULKAN_FIND
  return out;
}

void check(VkResult result, const std::string& what) {
  if (result != VK_SUCCESS) throw DeviceError(text("[vulkan] ", what, ": ", reason(result)));
}

}  // namespace plumb::vulkan
