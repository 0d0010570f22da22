// The devices that every kernel test runs on.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/catch.h"

namespace plumb {

// "cpu" and "oracle", or the one that the environment variable PLUMB_TEST_DEVICES names.
inline const std::vector<std::string>& test_devices() {
  static const std::vector<std::string> names = [] {
    const char* other = std::getenv("PLUMB_TEST_DEVICES");
    return other ? std::vector<std::string>{other} : std::vector<std::string>{"cpu", "oracle"};
  }();
  return names;
}

// Opens one of them and makes sure that it is the one.
inline std::unique_ptr<Device> open_test_device(const std::string& name) {
  std::unique_ptr<Device> device = open_device(name, 2);
  REQUIRE(device->name() == name);
  return device;
}

}  // namespace plumb
