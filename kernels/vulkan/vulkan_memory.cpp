#include "kernels/vulkan/vulkan_memory.h"

#include <optional>

#include "kernels/core/error.h"

namespace plumb::vulkan {

VulkanMemory::~VulkanMemory() {
  for (const auto& [address, buffer] : buffers_) destroy(buffer);
}

const Buffer& VulkanMemory::make(size_t bytes, Where where) {
  auto info = structure<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
               VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  Buffer out;
  out.bytes = bytes;
  check_memory(api_.vkCreateBuffer(device_, &info, nullptr, &out.handle), bytes);
  try {
    out.memory = allocate(out, where);
    check(api_.vkBindBufferMemory(device_, out.handle, out.memory, 0), "vkBindBufferMemory");
    if (where == Where::host) {
      check(api_.vkMapMemory(device_, out.memory, 0, bytes, 0, &out.host), "vkMapMemory");
    }
  } catch (...) {
    destroy(out);
    throw;
  }
  auto asked = structure<VkBufferDeviceAddressInfo>(VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO);
  asked.buffer = out.handle;
  out.address = api_.vkGetBufferDeviceAddress(device_, &asked);
  return buffers_[out.address] = out;
}

void VulkanMemory::release(uint64_t address) {
  const auto found = buffers_.find(address);
  if (found == buffers_.end()) return;
  destroy(found->second);
  buffers_.erase(found);
}

Place VulkanMemory::place_of(uint64_t address, size_t bytes) const {
  const auto after = buffers_.upper_bound(address);
  if (after != buffers_.begin()) {
    const Buffer& buffer = std::prev(after)->second;
    const uint64_t offset = address - buffer.address;
    if (offset <= buffer.bytes && bytes <= buffer.bytes - offset) return {buffer.handle, offset};
  }
  throw DeviceError(
      text("[vulkan] ", bytes, " bytes at ", address, " are not memory of this device"));
}

VkDeviceMemory VulkanMemory::allocate(const Buffer& buffer, Where where) const {
  VkMemoryRequirements needs;
  api_.vkGetBufferMemoryRequirements(device_, buffer.handle, &needs);
  auto flags = structure<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO);
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  auto info = structure<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
  info.allocationSize = needs.size;
  info.memoryTypeIndex = type_for(needs.memoryTypeBits, where);
  VkDeviceMemory out{};
  check_memory(api_.vkAllocateMemory(device_, &info, nullptr, &out), buffer.bytes);
  return out;
}

void VulkanMemory::check_memory(VkResult result, size_t bytes) const {
  if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY) {
    throw DeviceError(text("[vulkan] ", bytes, " bytes asked for, ", free_text(),
                           ": use a smaller case, or end what else uses it"));
  }
  check(result, text(bytes, " bytes of memory"));
}

// What the host reads should be in its caches: elsewhere reads take ten times as long.
uint32_t VulkanMemory::type_for(uint32_t allowed, Where where) const {
  auto all = structure<VkPhysicalDeviceMemoryProperties2>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2);
  api_.vkGetPhysicalDeviceMemoryProperties2(physical_.handle, &all);
  const auto find = [&](VkMemoryPropertyFlags wanted) -> std::optional<uint32_t> {
    for (uint32_t i = 0; i < all.memoryProperties.memoryTypeCount; ++i) {
      const VkMemoryPropertyFlags has = all.memoryProperties.memoryTypes[i].propertyFlags;
      if ((allowed >> i & 1) != 0 && (has & wanted) == wanted) return i;
    }
    return {};
  };
  constexpr VkMemoryPropertyFlags visible =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  auto found = where == Where::device ? find(VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
                                      : find(visible | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
  if (!found && where == Where::host) found = find(visible);
  require<DeviceError>(found.has_value(), "vulkan", physical_.name, " has no memory that ",
                       where == Where::device ? "is its own" : "the host sees, too",
                       ", for buffers with addresses");
  return *found;
}

// "1024 of 4096 are free on NAME"; not every driver says what is free.
std::string VulkanMemory::free_text() const {
  auto budget = structure<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
  auto all = structure<VkPhysicalDeviceMemoryProperties2>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
      physical_.has_memory_budget ? &budget : nullptr);
  api_.vkGetPhysicalDeviceMemoryProperties2(physical_.handle, &all);
  VkDeviceSize total = 0, free = 0;
  for (uint32_t i = 0; i < all.memoryProperties.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = all.memoryProperties.memoryHeaps[i];
    if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0) continue;
    total += heap.size;
    free += budget.heapBudget[i] - std::min(budget.heapUsage[i], budget.heapBudget[i]);
  }
  if (!physical_.has_memory_budget) return text(physical_.name, " has ", total);
  return text(free, " of ", total, " are free on ", physical_.name);
}

void VulkanMemory::destroy(const Buffer& buffer) const {
  api_.vkDestroyBuffer(device_, buffer.handle, nullptr);
  api_.vkFreeMemory(device_, buffer.memory, nullptr);
}

}  // namespace plumb::vulkan
