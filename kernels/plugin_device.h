// Devices with plugins: one whose ops are partly a plugin's, and one that a plugin makes.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "kernels/plugin_ops.h"

namespace plumb {

// The device with its ops replaced by those that the plugins have.
std::unique_ptr<Device> replace_ops(std::unique_ptr<Device> device, PluginLibraries plugins);

// A device whose memory and ops are the plugin's (its memory() is not null).
std::unique_ptr<Device> open_plugin_device(const std::shared_ptr<const PluginLibrary>& plugin);

}  // namespace plumb
