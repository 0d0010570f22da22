// The devices that Vulkan's drivers have, and whether the kernels can run on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/vulkan/exact_spirv.h"
#include "kernels/vulkan/vulkan_api.h"

namespace plumb::vulkan {

struct PhysicalDevice {
  VkPhysicalDevice handle{};
  std::string name;         // "NVIDIA H200"
  std::string description;  // "NVIDIA H200, Vulkan 1.4, NVIDIA 580.159.04"
  std::string problem;      // why kernels cannot run, "" if they can
  bool is_cpu = false;      // the CPU does the work
  bool has_16_bit_storage = false;
  bool has_memory_budget = false;  // it says how much memory is free
  KeptFloats keeps;                // what it promises
  uint32_t queue_family = 0;       // one that computes
  uint32_t timestamp_bits = 0;     // of that queue's clock, 0: it has none
  double timestamp_seconds = 0;    // a step of it
};

class Instance {
 public:
  // Throws DeviceError when there is no driver.
  explicit Instance(PFN_vkGetInstanceProcAddr entry);
  ~Instance() { api_.vkDestroyInstance(instance_, nullptr); }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const VulkanApi& api() const { return api_; }
  // GPUs first: what computes on the CPU is there wherever Mesa is.
  const std::vector<PhysicalDevice>& devices() const { return devices_; }
  // Throws DeviceError for a number that is none, and for a device that cannot run the kernels.
  const PhysicalDevice& device(int ordinal) const;

 private:
  VkInstance instance_{};
  VulkanApi api_;
  std::vector<PhysicalDevice> devices_;
};

}  // namespace plumb::vulkan
