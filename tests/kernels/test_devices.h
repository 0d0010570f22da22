// The devices that every kernel test runs on.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/catch.h"
#include "tests/kernels/amx_model.h"

namespace plumb {

// "cpu" and "oracle", or the one that the environment variable PLUMB_TEST_DEVICES names.
inline const std::vector<std::string>& test_devices() {
  static const std::vector<std::string> names = [] {
    const char* other = std::getenv("PLUMB_TEST_DEVICES");
    return other ? std::vector<std::string>{other} : std::vector<std::string>{"cpu", "oracle"};
  }();
  return names;
}

// The same and, where it replaces one of them, the CPU device with a model of AMX: for ops that
// use it.
inline constexpr const char* kAmxModel = "cpu with a model of AMX";
inline std::vector<std::string> test_devices_of_products() {
  std::vector<std::string> names = test_devices();
  if (cpu::amx_model() && names.front() == "cpu") names.emplace_back(kAmxModel);
  return names;
}

// Opens one of them and makes sure that it is the one.
inline std::unique_ptr<Device> open_test_device(const std::string& name) {
  if (name == kAmxModel) return open_cpu_device_of(*cpu::amx_model(), 2);
  std::unique_ptr<Device> device = open_device(name, 2);
  REQUIRE(device->name() == name);
  return device;
}

}  // namespace plumb
