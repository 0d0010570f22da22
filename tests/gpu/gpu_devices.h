// The GPUs that these tests run on: real ones, and the emulated one, on which they are small.
#pragma once

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "tests/catch.h"

namespace plumb {

inline bool is_emulated(const std::string& device) { return device.rfind("emu", 0) == 0; }

// One usable device of each kind. Those that are absent are named, so that a skip is never silent.
inline std::vector<std::string> gpu_devices() {
  std::vector<std::string> out;
  for (const DeviceStatus& status : list_devices()) {
    const std::string kind = status.name.substr(0, status.name.find(':'));
    if (kind != "cuda" && kind != "hip" && kind != "emu") continue;
    const bool have = !out.empty() && out.back().rfind(kind, 0) == 0;
    if (!status.usable) {
      std::cout << "not run on " << status.name << ": " << status.text << '\n';
    } else if (!have) {
      out.push_back(status.name);
    }
  }
  if (out.empty()) std::cout << "skipped: no GPU, and no emulated one in this build\n";
  return out;
}

// And all emulated ones of this build: the other wave width, those that check every access.
// Portable kernels are others.
inline std::vector<std::string> gpu_and_emulated_devices() {
  std::vector<std::string> out = gpu_devices();
  for (const DeviceStatus& status : list_devices()) {
    const bool have = std::find(out.begin(), out.end(), status.name) != out.end();
    const bool portable = status.name == "emu-portable";
    if (status.usable && is_emulated(status.name) && !portable && !have) out.push_back(status.name);
  }
  return out;
}

}  // namespace plumb
