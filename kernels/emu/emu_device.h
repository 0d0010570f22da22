// The emulated GPUs: "emu:32" and "emu:64" run the GPU kernels on the CPU at that wave width;
// "emu-check:32" and "emu-check:64" also check every access to memory. "emu" and "emu-check" alone
// mean width 32.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace plumb {

// The four devices.
std::vector<DeviceStatus> list_emu_devices();

// Throws UsageError for a name that is none of them, and for a PLUMB_EMU_SEED that is no number.
std::unique_ptr<Device> open_emu_device(const std::string& name);

}  // namespace plumb
