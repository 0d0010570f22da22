// Buffers of a Vulkan device by their addresses: kernels have addresses only, copies need the
// buffer.
#pragma once

#include <map>

#include "kernels/vulkan/physical_devices.h"

namespace plumb::vulkan {

struct Buffer {
  VkBuffer handle{};
  VkDeviceMemory memory{};
  uint64_t address = 0;
  size_t bytes = 0;
  void* host = nullptr;  // where the host sees it, if it does
};

// A place inside a buffer.
struct Place {
  VkBuffer buffer{};
  VkDeviceSize offset = 0;
};

enum class Where { device, host };

class VulkanMemory {
 public:
  VulkanMemory(const VulkanApi& api, const PhysicalDevice& physical, VkDevice device)
      : api_(api), physical_(physical), device_(device) {}
  ~VulkanMemory();
  VulkanMemory(const VulkanMemory&) = delete;
  VulkanMemory& operator=(const VulkanMemory&) = delete;

  // Throws DeviceError with both numbers when there is none.
  const Buffer& make(size_t bytes, Where where);
  void release(uint64_t address);
  // Throws DeviceError for an address in none of the buffers.
  Place place_of(uint64_t address, size_t bytes) const;

 private:
  uint32_t type_for(uint32_t allowed, Where where) const;
  VkDeviceMemory allocate(const Buffer& buffer, Where where) const;
  void check_memory(VkResult result, size_t bytes) const;
  std::string free_text() const;
  void destroy(const Buffer& buffer) const;

  const VulkanApi& api_;
  const PhysicalDevice& physical_;
  VkDevice device_;
  std::map<uint64_t, Buffer> buffers_;
};

}  // namespace plumb::vulkan
