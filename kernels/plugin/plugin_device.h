// Devices with plugins: one whose ops are partly a plugin's, and one that a plugin makes. And what
// is known of plugins besides device.h.
#pragma once

#include <memory>

#include "kernels/core/device.h"
#include "kernels/plugin/plugin_ops.h"

namespace plumb {

// The device with its ops replaced by those that the plugins have.
std::unique_ptr<Device> replace_ops(std::unique_ptr<Device> device, PluginLibraries plugins);

// A device whose memory and ops are the plugin's (its memory() is not null).
std::unique_ptr<Device> open_plugin_device(const std::shared_ptr<const PluginLibrary>& plugin);

// Notes a plugin that another process has loaded; this one loads it with its first device, and
// counts it among loaded_plugins() at once.
void declare_plugin(LoadedPlugin plugin, std::string description);
// "my_norm replaces rms_norm of cpu", in the order of loaded_plugins().
std::vector<std::string> describe_plugins();

// Whether plugins may promise less than what they replace (not at the start): else a device with
// such a plugin cannot be opened.
void allow_looser_contracts(bool allowed);
bool looser_contracts_allowed();
// "" or, where a plugin's kernel runs the op and promises less than the device's own and than sums
// in float, which need no leave: "rms_norm: f32 acc2 eager, the device's own f32 acc24 eager".
std::string looser_contract(const Ops& ops, OpId op, DType storage);

}  // namespace plumb
