// The functions of Vulkan, found when a device is opened: no program depends on the loader, and one
// built where Vulkan is runs where it is not.
#pragma once

#include <vulkan/vulkan_core.h>

#include <string>

namespace plumb::vulkan {

// Every function that is called once there is an instance.
// clang-format off
#define PLUMB_VULKAN_FUNCTIONS(F)                                                             \
  F(vkDestroyInstance) F(vkEnumeratePhysicalDevices) F(vkGetPhysicalDeviceProperties2)        \
  F(vkGetPhysicalDeviceFeatures2) F(vkGetPhysicalDeviceQueueFamilyProperties)                 \
  F(vkGetPhysicalDeviceMemoryProperties2) F(vkEnumerateDeviceExtensionProperties)             \
  F(vkCreateDevice) F(vkDestroyDevice) F(vkGetDeviceQueue) F(vkCreateBuffer)                  \
  F(vkDestroyBuffer) F(vkGetBufferMemoryRequirements) F(vkAllocateMemory) F(vkFreeMemory)     \
  F(vkBindBufferMemory) F(vkMapMemory) F(vkGetBufferDeviceAddress) F(vkCreateShaderModule)    \
  F(vkDestroyShaderModule) F(vkCreatePipelineLayout) F(vkDestroyPipelineLayout)               \
  F(vkCreateComputePipelines) F(vkDestroyPipeline) F(vkCreateCommandPool)                     \
  F(vkDestroyCommandPool) F(vkAllocateCommandBuffers) F(vkFreeCommandBuffers)                 \
  F(vkBeginCommandBuffer) F(vkEndCommandBuffer) F(vkCmdBindPipeline) F(vkCmdPushConstants)    \
  F(vkCmdDispatch) F(vkCmdPipelineBarrier) F(vkCmdCopyBuffer) F(vkCmdFillBuffer)              \
  F(vkCmdExecuteCommands) F(vkCreateQueryPool) F(vkDestroyQueryPool) F(vkCmdResetQueryPool)   \
  F(vkCmdWriteTimestamp) F(vkGetQueryPoolResults) F(vkQueueSubmit) F(vkQueueWaitIdle)
// clang-format on

#define PLUMB_VULKAN_MEMBER(name) PFN_##name name = nullptr;
struct VulkanApi {
  PLUMB_VULKAN_FUNCTIONS(PLUMB_VULKAN_MEMBER)
};
#undef PLUMB_VULKAN_MEMBER

// The loader's entry, from which all functions are found. DeviceError where there is none:
// "[vulkan] no Vulkan loader (libvulkan.so.1): install libvulkan1 and a driver, for example ..."
PFN_vkGetInstanceProcAddr load_vulkan(const char* library = "libvulkan.so.1");

// Throws DeviceError naming a function that the loader lacks.
VulkanApi find_functions(PFN_vkGetInstanceProcAddr entry, VkInstance instance);

// A structure of the API: all zero but for its type and what it is chained to.
template <class T>
T structure(VkStructureType type, void* next = nullptr) {
  T out{};
  out.sType = type;
  out.pNext = next;
  return out;
}

// Throws DeviceError "[vulkan] `what`: the reason" unless it is a success.
void check(VkResult result, const std::string& what);

}  // namespace plumb::vulkan
