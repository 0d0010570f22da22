// Kinds of devices that another library makes: they are opened by name only, list_devices() and
// "auto" do not know them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/core/device.h"

namespace plumb {

using OpenDevice = std::function<std::unique_ptr<Device>(const std::string& name, int threads)>;

// `kind` is what is in front of ':' ("exec" of "exec:CMD"), of static lifetime; a second one of
// that name is left out. Call it before the first device is opened.
void add_device_kind(std::string_view kind, OpenDevice open);

// Whether a device of that name is of a kind that this program knows.
bool is_device_kind(std::string_view device);

}  // namespace plumb
