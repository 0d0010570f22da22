#include "kernels/vulkan/physical_devices.h"

#include <algorithm>
#include <string_view>

#include "kernels/core/error.h"

namespace plumb::vulkan {
namespace {

constexpr uint32_t kApiVersion = VK_API_VERSION_1_2;
constexpr uint32_t kMostThreads = 256;  // of a group: THREADS of kernels/portable

std::string version_of(uint32_t version) {
  return text(VK_API_VERSION_MAJOR(version), '.', VK_API_VERSION_MINOR(version));
}

bool has_extension(const VulkanApi& api, VkPhysicalDevice device, std::string_view name) {
  uint32_t count = 0;
  check(api.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr),
        "vkEnumerateDeviceExtensionProperties");
  std::vector<VkExtensionProperties> all(count);
  check(api.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, all.data()),
        "vkEnumerateDeviceExtensionProperties");
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& extension) { return extension.extensionName == name; });
}

void read_properties(const VulkanApi& api, PhysicalDevice& device) {
  auto floats = structure<VkPhysicalDeviceFloatControlsProperties>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES);
  auto driver = structure<VkPhysicalDeviceDriverProperties>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, &floats);
  auto all = structure<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                                    &driver);
  api.vkGetPhysicalDeviceProperties2(device.handle, &all);
  const VkPhysicalDeviceProperties& has = all.properties;
  device.name = has.deviceName;
  device.is_cpu = has.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
  device.timestamp_seconds = has.limits.timestampPeriod * 1e-9;
  if (has.apiVersion < kApiVersion) {
    device.description = text(device.name, ", Vulkan ", version_of(has.apiVersion));
    device.problem = text(device.name, " has Vulkan ", version_of(has.apiVersion), ", ",
                          version_of(kApiVersion), " is needed: update its driver");
    return;
  }
  device.description = text(device.name, ", Vulkan ", version_of(has.apiVersion), ", ",
                            driver.driverName, ' ', driver.driverInfo);
  device.keeps = {floats.shaderSignedZeroInfNanPreserveFloat32 == VK_TRUE,
                  floats.shaderDenormPreserveFloat32 == VK_TRUE};
  const uint32_t threads =
      std::min(has.limits.maxComputeWorkGroupInvocations, has.limits.maxComputeWorkGroupSize[0]);
  if (threads < kMostThreads) {
    device.problem =
        text(device.name, " runs groups of ", threads, " threads, kernels have ", kMostThreads);
  }
}

void read_features(const VulkanApi& api, PhysicalDevice& device) {
  auto v11 = structure<VkPhysicalDeviceVulkan11Features>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
  auto v12 = structure<VkPhysicalDeviceVulkan12Features>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, &v11);
  auto has =
      structure<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &v12);
  api.vkGetPhysicalDeviceFeatures2(device.handle, &has);
  const auto need = [&](VkBool32 feature, const char* what) {
    if (!feature && device.problem.empty()) device.problem = text(device.name, " lacks ", what);
  };
  need(v12.bufferDeviceAddress, "bufferDeviceAddress, which addresses of tensors need");
  need(v12.scalarBlockLayout, "scalarBlockLayout, which arguments of kernels need");
  need(has.features.shaderInt64, "shaderInt64, which addresses of tensors need");
  device.has_16_bit_storage = v11.storageBuffer16BitAccess && v12.storageBuffer8BitAccess;
}

void find_queue(const VulkanApi& api, PhysicalDevice& device) {
  uint32_t count = 0;
  api.vkGetPhysicalDeviceQueueFamilyProperties(device.handle, &count, nullptr);
  std::vector<VkQueueFamilyProperties> all(count);
  api.vkGetPhysicalDeviceQueueFamilyProperties(device.handle, &count, all.data());
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& family) {
    return (family.queueFlags & VK_QUEUE_COMPUTE_BIT) != 0;
  });
  if (found == all.end()) {
    device.problem = text(device.name, " has no queue that computes");
    return;
  }
  device.queue_family = static_cast<uint32_t>(found - all.begin());
  device.timestamp_bits = found->timestampValidBits;
}

PhysicalDevice look_at(const VulkanApi& api, VkPhysicalDevice handle) {
  PhysicalDevice out;
  out.handle = handle;
  read_properties(api, out);
  if (!out.problem.empty()) return out;
  read_features(api, out);
  find_queue(api, out);
  out.has_memory_budget = has_extension(api, handle, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  return out;
}

VkInstance create_instance(PFN_vkGetInstanceProcAddr entry) {
  const auto create =
      reinterpret_cast<PFN_vkCreateInstance>(entry(VK_NULL_HANDLE, "vkCreateInstance"));
  auto application = structure<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
  application.pApplicationName = "plumbline";
  application.apiVersion = kApiVersion;
  auto info = structure<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
  info.pApplicationInfo = &application;
  VkInstance out{};
  check(create(&info, nullptr, &out), "vkCreateInstance");
  return out;
}

}  // namespace

Instance::Instance(PFN_vkGetInstanceProcAddr entry)
    : instance_(create_instance(entry)), api_(find_functions(entry, instance_)) {
  uint32_t count = 0;
  check(api_.vkEnumeratePhysicalDevices(instance_, &count, nullptr), "vkEnumeratePhysicalDevices");
  std::vector<VkPhysicalDevice> handles(count);
  check(api_.vkEnumeratePhysicalDevices(instance_, &count, handles.data()),
        "vkEnumeratePhysicalDevices");
  for (VkPhysicalDevice handle : handles) devices_.push_back(look_at(api_, handle));
  std::stable_partition(devices_.begin(), devices_.end(),
                        [](const PhysicalDevice& device) { return !device.is_cpu; });
}

const PhysicalDevice& Instance::device(int ordinal) const {
  require<DeviceError>(ordinal >= 0 && ordinal < static_cast<int>(devices_.size()), "vulkan",
                       "no device ", ordinal, ": ", devices_.size(),
                       " found; vulkaninfo --summary lists them");
  const PhysicalDevice& out = devices_[static_cast<size_t>(ordinal)];
  require<DeviceError>(out.problem.empty(), "vulkan", out.problem);
  return out;
}

}  // namespace plumb::vulkan
