// The kernels as a Vulkan device runs them, each built when it is first launched.
#pragma once

#include <map>

#include "kernels/vulkan/physical_devices.h"
#include "kernels/vulkan/shaders.h"

namespace plumb::vulkan {

// What a launch pushes: KERNEL of portable.h.
struct PushConstants {
  uint64_t arguments;  // their address
  uint32_t groups;
  uint32_t unused;
};

class Pipelines {
 public:
  Pipelines(const VulkanApi& api, const PhysicalDevice& physical, VkDevice device,
            FindShader shader);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // Throws DeviceError for a build without shaders, a damaged shader and one that the driver
  // refuses, Unsupported for a storage type that the device lacks.
  VkPipeline get(const portable::Kernel& kernel);
  VkPipelineLayout layout() const { return layout_; }
  // From now on kernels take fma for a product and a sum, each rounded.
  void use_split_products();

 private:
  VkPipeline build(const portable::Kernel& kernel) const;

  const VulkanApi& api_;
  const PhysicalDevice& physical_;
  VkDevice device_;
  FindShader shader_;
  VkPipelineLayout layout_{};
  bool fma_rounds_once_ = true;
  std::map<portable::Kernel, VkPipeline> built_;
};

// Why kernels of this storage type cannot run, "" if they can.
std::string lacking(const PhysicalDevice& device, portable::Storage storage);

}  // namespace plumb::vulkan
