// The portable kernels on the emulated GPU that checks every access.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device.h"

namespace plumb::emu_check {

std::unique_ptr<Device> open_portable(const std::string& name);

}  // namespace plumb::emu_check
