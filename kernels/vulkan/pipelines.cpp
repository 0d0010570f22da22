#include "kernels/vulkan/pipelines.h"

#include <array>
#include <cstddef>
#include <utility>

#include "kernels/core/error.h"

namespace plumb::vulkan {
namespace {

// constant_id 0 and 1 of portable.h.
struct Constants {
  VkBool32 fma_rounds_once;
  int32_t variant;
};
constexpr std::array<VkSpecializationMapEntry, 2> kConstants = {
    {{0, offsetof(Constants, fma_rounds_once), sizeof(VkBool32)},
     {1, offsetof(Constants, variant), sizeof(int32_t)}}};

}  // namespace

std::string lacking(const PhysicalDevice& device, portable::Storage storage) {
  if (storage == portable::Storage::f32 || device.has_16_bit_storage) return {};
  return device.name + " has no 16-bit storage (storageBuffer16BitAccess)";
}

Pipelines::Pipelines(const VulkanApi& api, const PhysicalDevice& physical, VkDevice device,
                     FindShader shader)
    : api_(api), physical_(physical), device_(device), shader_(std::move(shader)) {
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(PushConstants)};
  auto info = structure<VkPipelineLayoutCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO);
  info.pushConstantRangeCount = 1;
  info.pPushConstantRanges = &range;
  check(api_.vkCreatePipelineLayout(device_, &info, nullptr, &layout_), "vkCreatePipelineLayout");
}

Pipelines::~Pipelines() {
  for (const auto& [kernel, pipeline] : built_) api_.vkDestroyPipeline(device_, pipeline, nullptr);
  api_.vkDestroyPipelineLayout(device_, layout_, nullptr);
}

VkPipeline Pipelines::get(const portable::Kernel& kernel) {
  const auto found = built_.find(kernel);
  if (found != built_.end()) return found->second;
  return built_[kernel] = build(kernel);
}

void Pipelines::use_split_products() {
  fma_rounds_once_ = false;
  for (const auto& [kernel, pipeline] : built_) api_.vkDestroyPipeline(device_, pipeline, nullptr);
  built_.clear();
}

VkPipeline Pipelines::build(const portable::Kernel& kernel) const {
  const std::string name = kernel.source->name;
  const Shader embedded = shader_(name, kernel.storage);
  require<DeviceError>(!embedded.empty(), "vulkan", name, ": ", kNoShaders);
  const std::vector<uint32_t> words = exact_spirv(name, embedded, physical_.keeps);
  // Those for float32 may have masks, or sums of other types.
  const auto needed = has_small_elements(words) ? portable::Storage::f16 : kernel.storage;
  const std::string lacks = lacking(physical_, needed);
  if (!lacks.empty()) throw Unsupported(text('[', name, "] ", lacks));

  auto module = structure<VkShaderModuleCreateInfo>(VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO);
  module.codeSize = words.size() * sizeof(uint32_t);
  module.pCode = words.data();
  VkShaderModule shader{};
  const std::string what = "the shader of " + name;
  check(api_.vkCreateShaderModule(device_, &module, nullptr, &shader), what);
  const Constants constants{fma_rounds_once_ ? VK_TRUE : VK_FALSE, kernel.variant};
  const VkSpecializationInfo special{kConstants.size(), kConstants.data(), sizeof constants,
                                     &constants};
  auto info =
      structure<VkComputePipelineCreateInfo>(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
  info.stage = structure<VkPipelineShaderStageCreateInfo>(
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO);
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = shader;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &special;
  info.layout = layout_;
  VkPipeline out{};
  const VkResult result =
      api_.vkCreateComputePipelines(device_, VK_NULL_HANDLE, 1, &info, nullptr, &out);
  api_.vkDestroyShaderModule(device_, shader, nullptr);
  check(result, what);
  return out;
}

}  // namespace plumb::vulkan
