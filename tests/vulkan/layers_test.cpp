// Vulkan's validation layer has nothing to say of all that the driver does, with the checks of
// synchronisation switched on. And it speaks where something is left out on purpose.
#include <set>

#include "tests/vulkan/lying_loader.h"
#include "tests/vulkan/vulkan_devices.h"

namespace plumb::vulkan {
namespace {

constexpr const char* kLayer = "VK_LAYER_KHRONOS_validation";

std::vector<std::string> messages;
VKAPI_ATTR VkBool32 VKAPI_CALL note(VkDebugUtilsMessageSeverityFlagBitsEXT,
                                    VkDebugUtilsMessageTypeFlagsEXT,
                                    const VkDebugUtilsMessengerCallbackDataEXT* data, void*) {
  messages.emplace_back(data->pMessage);
  return VK_FALSE;
}

VkDebugUtilsMessengerEXT noting{};
// vkCreateInstance with the layer, whose messages are noted.
VKAPI_ATTR VkResult VKAPI_CALL create_checked(const VkInstanceCreateInfo* given,
                                              const VkAllocationCallbacks* callbacks,
                                              VkInstance* out) {
  const VkValidationFeatureEnableEXT enabled[] = {
      VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
  auto features = structure<VkValidationFeaturesEXT>(VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT);
  features.enabledValidationFeatureCount = 1;
  features.pEnabledValidationFeatures = enabled;
  auto messenger = structure<VkDebugUtilsMessengerCreateInfoEXT>(
      VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT);
  messenger.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                              VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  messenger.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
  messenger.pfnUserCallback = note;
  features.pNext = &messenger;
  const char* const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
  VkInstanceCreateInfo info = *given;
  info.pNext = &features;
  info.enabledLayerCount = 1;
  info.ppEnabledLayerNames = &kLayer;
  info.enabledExtensionCount = 1;
  info.ppEnabledExtensionNames = &extension;
  const VkResult result =
      LyingLoader::original<PFN_vkCreateInstance>("vkCreateInstance")(&info, callbacks, out);
  if (result != VK_SUCCESS) return result;
  LyingLoader::instance = *out;
  const auto create =
      LyingLoader::original<PFN_vkCreateDebugUtilsMessengerEXT>("vkCreateDebugUtilsMessengerEXT");
  messenger.pNext = nullptr;
  return create(*out, &messenger, nullptr, &noting);
}
VKAPI_ATTR void VKAPI_CALL destroy_checked(VkInstance instance,
                                           const VkAllocationCallbacks* callbacks) {
  LyingLoader::original<PFN_vkDestroyDebugUtilsMessengerEXT>("vkDestroyDebugUtilsMessengerEXT")(
      instance, noting, nullptr);
  LyingLoader::original<PFN_vkDestroyInstance>("vkDestroyInstance")(instance, callbacks);
}

bool has_layer() {
  if (!can_run()) return false;
  const auto list = reinterpret_cast<PFN_vkEnumerateInstanceLayerProperties>(
      load_vulkan()(VK_NULL_HANDLE, "vkEnumerateInstanceLayerProperties"));
  uint32_t count = 0;
  list(&count, nullptr);
  std::vector<VkLayerProperties> all(count);
  list(&count, all.data());
  for (const VkLayerProperties& layer : all) {
    if (std::string(layer.layerName) == kLayer) return true;
  }
  std::cout << "skipped: no " << kLayer << ": package vulkan-validationlayers has it\n";
  return false;
}

// What the layer says of everything that a driver does.
std::vector<std::string> messages_of(LyingLoader& loader) {
  loader.replace("vkCreateInstance", create_checked);
  loader.replace("vkDestroyInstance", destroy_checked);
  messages.clear();
  {
    const auto driver = open_driver(0, loader.entry());
    const uint64_t x = driver->allocate(1 << 20), y = x + (1 << 19);
    const std::vector<float> given(1 << 10, 2.0f);
    driver->fill(x, 0, 1 << 19);
    driver->upload(x, given.data(), given.size() * sizeof(float));
    driver->upload(y + 2, given.data(), given.size() * sizeof(float));
    driver->fill(y + 1, 3, 4097);
    driver->fill(y, 4, 1 << 10);
    for (const ProbeFunction which : {kFma, kProduct, kSum}) {
      launch_probe(*driver, {x, x, y, 1 << 10, which});
    }
    driver->time([&] { launch_probe(*driver, {x, x, y, 1 << 10, kSum}); });
    auto graph = driver->capture([&] { launch_probe(*driver, {x, x, y, 1 << 10, kSum}); });
    graph->replay();
    graph->replay();
    floats_at(*driver, x, 1 << 10);
    driver->use_split_products();
    for (const auto storage :
         {portable::Storage::f32, portable::Storage::bf16, portable::Storage::f16}) {
      const Probe probe{x, x, y, 1 << 10, kFma};
      driver->launch({&kProbeSource, storage, 0}, 16, &probe, sizeof probe);
    }
    const uint64_t other = driver->allocate(1 << 16);
    driver->fill(other, 1, 1 << 16);
    driver->release(other);
    driver->synchronize();
  }
  return messages;
}

TEST_CASE("Vulkan: the validation layer has nothing to say") {
  if (!has_layer()) return;
  LyingLoader loader;
  for (const std::string& message : messages_of(loader)) FAIL_CHECK(message);
}

VKAPI_ATTR VkResult VKAPI_CALL create_without_features(VkPhysicalDevice physical,
                                                       const VkDeviceCreateInfo* given,
                                                       const VkAllocationCallbacks* callbacks,
                                                       VkDevice* out) {
  VkDeviceCreateInfo info = *given;
  info.pNext = nullptr;
  return LyingLoader::original<PFN_vkCreateDevice>("vkCreateDevice")(physical, &info, callbacks,
                                                                     out);
}

TEST_CASE("Vulkan: the validation layer sees features that were not asked for") {
  if (!has_layer()) return;
  LyingLoader loader;
  loader.replace("vkCreateDevice", create_without_features);
  const std::vector<std::string> said = messages_of(loader);
  REQUIRE_FALSE(said.empty());
  std::string all;
  for (const std::string& message : said) all += message + '\n';
  REQUIRE_THAT(all, Catch::Contains("vkGetBufferDeviceAddress") &&
                        Catch::Contains("VkShaderModuleCreateInfo"));
}

VKAPI_ATTR void VKAPI_CALL no_barrier(VkCommandBuffer, VkPipelineStageFlags, VkPipelineStageFlags,
                                      VkDependencyFlags, uint32_t, const VkMemoryBarrier*, uint32_t,
                                      const VkBufferMemoryBarrier*, uint32_t,
                                      const VkImageMemoryBarrier*) {}

TEST_CASE("Vulkan: the validation layer sees a barrier that is missing") {
  if (!has_layer()) return;
  LyingLoader loader;
  loader.replace("vkCmdPipelineBarrier", no_barrier);
  const std::vector<std::string> said = messages_of(loader);
  REQUIRE_FALSE(said.empty());
  REQUIRE_THAT(said.front(), Catch::Contains("SYNC-HAZARD"));
}

}  // namespace
}  // namespace plumb::vulkan
