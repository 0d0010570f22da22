// What goes wrong with Vulkan is said in words: which device, what is missing, what to do. Most of
// it no driver at hand does, so a loader with replaced functions does it.
#include <algorithm>
#include <cstdlib>

#include "kernels/ops/ops.h"
#include "kernels/portable/portable_device.h"
#include "tests/vulkan/lying_loader.h"
#include "tests/vulkan/vulkan_devices.h"

namespace plumb::vulkan {
namespace {

using Catch::Contains;

std::string opened(const LyingLoader& loader, int ordinal = 0) {
  return error_of([&] { open_driver(ordinal, loader.entry()); });
}

std::string device_name() { return Instance(load_vulkan()).device(0).name; }

// An environment variable for as long as this is there.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* now = std::getenv(name)) before_ = now;
    setenv(name, value, 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST_CASE("Vulkan: no loader, and a library that is none") {
  REQUIRE(error_of([] { load_vulkan("libvulkan-none.so.1"); }) ==
          "[vulkan] no Vulkan loader (libvulkan-none.so.1): install libvulkan1 and a "
          "driver, for example mesa-vulkan-drivers");
  REQUIRE(error_of([] { load_vulkan("libm.so.6"); }) ==
          "[vulkan] libm.so.6 lacks vkGetInstanceProcAddr: is it a Vulkan loader?");
}

TEST_CASE("Vulkan: no driver") {
  if (!can_run()) return;
  const Variable newer("VK_DRIVER_FILES", "/nonexistent.json");
  const Variable older("VK_ICD_FILENAMES", "/nonexistent.json");
  REQUIRE(error_of([] { open_driver(0, load_vulkan()); }) ==
          "[vulkan] vkCreateInstance: no driver: install mesa-vulkan-drivers or that "
          "of the GPU's vendor");
}

TEST_CASE("Vulkan: a number that no device has") {
  if (!can_run()) return;
  const size_t count = Instance(load_vulkan()).devices().size();
  const LyingLoader loader;
  const std::string rest = text(": ", count, " found; vulkaninfo --summary lists them");
  REQUIRE(opened(loader, 9) == "[vulkan] no device 9" + rest);
  REQUIRE(opened(loader, -1) == "[vulkan] no device -1" + rest);
}

TEST_CASE("Vulkan: a loader without a function") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace<PFN_vkVoidFunction>("vkGetBufferDeviceAddress", nullptr);
  REQUIRE(opened(loader) ==
          "[vulkan] the loader lacks vkGetBufferDeviceAddress: update libvulkan1");
}

// What the device has, without the feature that `take` takes away.
struct Features {
  VkPhysicalDeviceFeatures2& base;
  VkPhysicalDeviceVulkan11Features& v11;
  VkPhysicalDeviceVulkan12Features& v12;
};
void (*take)(Features) = nullptr;
VKAPI_ATTR void VKAPI_CALL fewer_features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* out) {
  LyingLoader::original<PFN_vkGetPhysicalDeviceFeatures2>("vkGetPhysicalDeviceFeatures2")(device,
                                                                                          out);
  auto* v12 = static_cast<VkPhysicalDeviceVulkan12Features*>(out->pNext);
  take({*out, *static_cast<VkPhysicalDeviceVulkan11Features*>(v12->pNext), *v12});
}

TEST_CASE("Vulkan: a device that lacks a feature") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace("vkGetPhysicalDeviceFeatures2", fewer_features);
  const std::string start = "[vulkan] " + device_name() + " lacks ";
  take = [](Features f) { f.v12.bufferDeviceAddress = VK_FALSE; };
  REQUIRE(opened(loader) == start + "bufferDeviceAddress, which addresses of tensors need");
  take = [](Features f) { f.v12.scalarBlockLayout = VK_FALSE; };
  REQUIRE(opened(loader) == start + "scalarBlockLayout, which arguments of kernels need");
  take = [](Features f) { f.base.features.shaderInt64 = VK_FALSE; };
  REQUIRE(opened(loader) == start + "shaderInt64, which addresses of tensors need");
}

TEST_CASE("Vulkan: without 16-bit storage the 16-bit types are unsupported") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace("vkGetPhysicalDeviceFeatures2", fewer_features);
  const std::string reason = device_name() + " has no 16-bit storage (storageBuffer16BitAccess)";
  for (const auto& without : std::vector<void (*)(Features)>{
           [](Features f) { f.v11.storageBuffer16BitAccess = VK_FALSE; },
           [](Features f) { f.v12.storageBuffer8BitAccess = VK_FALSE; }}) {
    take = without;
    const auto driver = open_driver(0, loader.entry());
    REQUIRE(driver->lacks(portable::Storage::f32).empty());
    for (const auto storage : {portable::Storage::bf16, portable::Storage::f16}) {
      REQUIRE(driver->lacks(storage) == reason);
      const portable::Kernel kernel{&kProbeSource, storage, 0};
      REQUIRE_THROWS_AS(driver->launch(kernel, 1, nullptr, 0), Unsupported);
      REQUIRE(error_of([&] { driver->launch(kernel, 1, nullptr, 0); }) == "[probe] " + reason);
    }
  }
}

TEST_CASE("Vulkan: the device says which op needs 16-bit storage, and runs float32") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace("vkGetPhysicalDeviceFeatures2", fewer_features);
  take = [](Features f) { f.v11.storageBuffer16BitAccess = VK_FALSE; };
  portable::PortableDevice device("vulkan:0", open_driver(0, loader.entry()));
  const auto norm = [&](DType dtype) {
    const Tensor x = device.allocate(dtype, {2, 8}), weight = device.allocate(dtype, {8});
    device.fill(x, 0);
    device.fill(weight, 0);
    device.ops().rms_norm(x, x, weight, {});
    device.synchronize();
  };
  const Tensor x = device.allocate(DType::f32, {2, 8});
  device.fill(x, 0);
  device.ops().softmax(x, x);
  float back[16];
  device.download(back, x);
  REQUIRE(std::all_of(std::begin(back), std::end(back), [](float y) { return y == 0.125f; }));
  REQUIRE_THROWS_AS(norm(DType::bf16), Unsupported);
  // A kernel for float32 that takes operands of other types as well.
  REQUIRE_THROWS_AS(norm(DType::f32), Unsupported);
  REQUIRE(error_of([&] { norm(DType::bf16); }) ==
          "[rms_norm] vulkan:0: " + device_name() +
              " has no 16-bit storage (storageBuffer16BitAccess)");
}

void (*change)(VkPhysicalDeviceProperties&) = nullptr;
VKAPI_ATTR void VKAPI_CALL other_properties(VkPhysicalDevice device,
                                            VkPhysicalDeviceProperties2* out) {
  LyingLoader::original<PFN_vkGetPhysicalDeviceProperties2>("vkGetPhysicalDeviceProperties2")(
      device, out);
  change(out->properties);
}
VKAPI_ATTR void VKAPI_CALL no_queues(VkPhysicalDevice, uint32_t* count, VkQueueFamilyProperties*) {
  *count = 0;
}

TEST_CASE("Vulkan: an old device, small groups, no queue") {
  if (!can_run()) return;
  const std::string start = "[vulkan] " + device_name();
  {
    LyingLoader loader;
    loader.replace("vkGetPhysicalDeviceProperties2", other_properties);
    change = [](VkPhysicalDeviceProperties& p) { p.apiVersion = VK_API_VERSION_1_1; };
    REQUIRE(opened(loader) == start + " has Vulkan 1.1, 1.2 is needed: update its driver");
    change = [](VkPhysicalDeviceProperties& p) { p.limits.maxComputeWorkGroupInvocations = 128; };
    REQUIRE(opened(loader) == start + " runs groups of 128 threads, kernels have 256");
  }
  LyingLoader loader;
  loader.replace("vkGetPhysicalDeviceQueueFamilyProperties", no_queues);
  REQUIRE(opened(loader) == start + " has no queue that computes");
}

TEST_CASE("Vulkan: a build without shaders") {
  if (!can_run()) return;
  const auto driver = open_driver(0, load_vulkan(), [](auto, auto) { return Shader(); });
  REQUIRE(error_of([&] {
            launch_probe(*driver, {0, 0, 0, 1, kSum});
          }) ==
          "[vulkan] probe: this build has no shaders: install glslang-tools and build "
          "again");
}

TEST_CASE("Vulkan: a damaged shader does not reach the driver") {
  if (!can_run()) return;
  const Shader whole = embedded_shader("probe", portable::Storage::f32);
  std::vector<uint32_t> words(whole.begin(), whole.end());
  words[100] = 0;
  size_t at = 5;  // the instruction there, whose length is wrong now or which is no longer found
  while (at < 100 && words[at] >> 16 != 0) at += words[at] >> 16;
  words[at] = 0;
  const auto driver = open_driver(0, load_vulkan(), [&](auto, auto) { return Shader(words); });
  REQUIRE(error_of([&] {
            launch_probe(*driver, {0, 0, 0, 1, kSum});
          }) == text("[vulkan] probe: its shader is damaged (word ", at, " of ", words.size(),
                     "): build again"));
}

VKAPI_ATTR VkResult VKAPI_CALL refused(VkDevice, VkPipelineCache, uint32_t,
                                       const VkComputePipelineCreateInfo*,
                                       const VkAllocationCallbacks*, VkPipeline*) {
  return VK_ERROR_UNKNOWN;
}

TEST_CASE("Vulkan: a shader that the driver refuses") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace("vkCreateComputePipelines", refused);
  const auto driver = open_driver(0, loader.entry());
  REQUIRE(error_of([&] {
            launch_probe(*driver, {0, 0, 0, 1, kSum});
          }) == "[vulkan] the shader of probe: VkResult -13");
}

VkDeviceSize too_much = 0;
VKAPI_ATTR VkResult VKAPI_CALL little_memory(VkDevice device, const VkMemoryAllocateInfo* info,
                                             const VkAllocationCallbacks* callbacks,
                                             VkDeviceMemory* out) {
  if (info->allocationSize >= too_much) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  return LyingLoader::original<PFN_vkAllocateMemory>("vkAllocateMemory")(device, info, callbacks,
                                                                         out);
}

TEST_CASE("Vulkan: too much memory is an error with both numbers, and the device stays usable") {
  if (!can_run()) return;
  const std::string name = device_name(),
                    what_to_do = ": use a smaller case, or end what else uses it";
  const auto driver = open_driver(0, load_vulkan());
  REQUIRE_THAT(error_of([&] { driver->allocate(size_t{1} << 45); }),
               Contains("[vulkan] 35184372088832 bytes asked for, ") && Contains(name) &&
                   Contains(what_to_do));
  LyingLoader loader;
  loader.replace("vkAllocateMemory", little_memory);
  too_much = 100 << 20;
  const auto small = open_driver(0, loader.entry());
  REQUIRE_THAT(
      error_of([&] { small->allocate(100 << 20); }),
      Contains("[vulkan] 104857600 bytes asked for, ") && Contains(name) && Contains(what_to_do));
  const uint64_t x = small->allocate(1 << 20);
  small->fill(x, 0, 256);
  launch_probe(*small, {x, x, x, 64, kSum});
  REQUIRE(floats_at(*small, x, 64) == std::vector<float>(64, 0.0f));
}

bool is_lost = false;
VKAPI_ATTR VkResult VKAPI_CALL maybe_lost(VkQueue queue) {
  LyingLoader::original<PFN_vkQueueWaitIdle>("vkQueueWaitIdle")(queue);
  return is_lost ? VK_ERROR_DEVICE_LOST : VK_SUCCESS;
}

TEST_CASE("Vulkan: a lost device says so, again and again") {
  if (!can_run()) return;
  LyingLoader loader;
  loader.replace("vkQueueWaitIdle", maybe_lost);
  is_lost = false;
  const auto driver = open_driver(0, loader.entry());
  const uint64_t x = driver->allocate(1 << 10);
  driver->fill(x, 0, 256);
  const auto graph = driver->capture([&] { launch_probe(*driver, {x, x, x, 64, kSum}); });
  driver->synchronize();
  launch_probe(*driver, {x, x, x, 64, kSum});
  is_lost = true;
  const std::string lost =
      "[vulkan] synchronize: the device was lost (a kernel crashed or took too long)";
  REQUIRE(error_of([&] { driver->synchronize(); }) == lost);
  is_lost = false;
  REQUIRE(error_of([&] { driver->synchronize(); }) == lost);
  REQUIRE(error_of([&] { launch_probe(*driver, {x, x, x, 64, kSum}); }) == lost);
  REQUIRE(error_of([&] { graph->replay(); }) == lost);
  REQUIRE(error_of([&] { floats_at(*driver, x, 1); }) == lost);
  REQUIRE_NOTHROW(driver->release(x));
}

}  // namespace
}  // namespace plumb::vulkan
