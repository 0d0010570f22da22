// Whether this build has emu-check, the emulated GPU that checks every access.
#pragma once

#include <algorithm>

#include "kernels/core/device.h"

namespace plumb {

inline bool has_checked_kernels() {
  const auto devices = list_devices();
  return std::any_of(devices.begin(), devices.end(), [](const DeviceStatus& status) {
    return status.name == "emu-check:32" && status.usable;
  });
}

}  // namespace plumb
