// What the tests of Vulkan need, or the reason why they are skipped.
#pragma once

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/vulkan/physical_devices.h"
#include "kernels/vulkan/vulkan_driver.h"
#include "tests/catch.h"

namespace plumb::vulkan {

// Whether there is a device, and shaders to run on it; else says why not.
inline bool can_run() {
  try {
    const Instance instance(load_vulkan());
    instance.device(0);
  } catch (const Error& error) {
    std::cout << "skipped: " << error.what() << '\n';
    return false;
  }
  if (!has_shaders()) std::cout << "skipped: " << kNoShaders << '\n';
  return has_shaders();
}

// The kernel probe.k: to[i] = a function of x[i] and y[i] (ProbeArguments of arguments.h).
inline const portable::KernelSource kProbeSource{"probe", 64, nullptr};
inline const portable::Kernel kProbe{&kProbeSource, portable::Storage::f32, 0};
struct Probe {
  uint64_t to, x, y;
  int32_t count, which;
};
enum ProbeFunction : int32_t { kFma = 0, kProduct = 2, kSum = 4 };

inline uint32_t probe_groups(int count) { return static_cast<uint32_t>(count + 63) / 64; }

inline void launch_probe(portable::Driver& driver, const Probe& probe) {
  driver.launch(kProbe, probe_groups(probe.count), &probe, sizeof probe);
}

inline std::vector<float> floats_at(portable::Driver& driver, uint64_t address, size_t count) {
  std::vector<float> out(count);
  driver.download(out.data(), address, count * sizeof(float));
  return out;
}

// What `f` throws, "" if nothing.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace plumb::vulkan
