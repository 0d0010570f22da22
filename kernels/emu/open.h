// How emu_device.cpp reaches the two builds of the kernels, of which the checked one may be absent.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device.h"

namespace plumb::emu {
std::unique_ptr<Device> open(const std::string& name, const std::string& description, int wave);
}
namespace plumb::emu_check {
std::unique_ptr<Device> open(const std::string& name, const std::string& description, int wave);
}
