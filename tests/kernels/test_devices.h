// The devices that every kernel test runs on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/catch.h"

namespace plumb {

inline const std::vector<std::string>& test_devices() {
  static const std::vector<std::string> names = {"cpu", "oracle"};
  return names;
}

// Opens one of them and makes sure that it is the one.
inline std::unique_ptr<Device> open_test_device(const std::string& name) {
  std::unique_ptr<Device> device = open_device(name, 2);
  REQUIRE(device->name() == name);
  return device;
}

}  // namespace plumb
