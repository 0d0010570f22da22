// The Vulkan loader with some functions replaced: what no driver at hand does, or forgets.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "kernels/core/error.h"
#include "kernels/vulkan/vulkan_driver.h"

namespace plumb::vulkan {

class LyingLoader {
 public:
  LyingLoader() {
    real = load_vulkan();
    replaced.clear();
  }

  // From now on, devices that are opened have this function instead of the loader's.
  template <class F>
  void replace(const char* name, F function) {
    replaced[name] = reinterpret_cast<PFN_vkVoidFunction>(function);
  }
  PFN_vkGetInstanceProcAddr entry() const { return find; }

  // The loader's own, for a replacement that calls it.
  template <class F>
  static F original(const char* name) {
    return reinterpret_cast<F>(real(instance, name));
  }

  static inline VkInstance instance{};  // the last one that asked

 private:
  static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL find(VkInstance of, const char* name) {
    instance = of;
    const auto found = replaced.find(name);
    return found == replaced.end() ? real(of, name) : found->second;
  }

  static inline PFN_vkGetInstanceProcAddr real = nullptr;
  static inline std::map<std::string, PFN_vkVoidFunction> replaced;
};

}  // namespace plumb::vulkan
