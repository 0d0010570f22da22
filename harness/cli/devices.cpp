// harness devices: every device this binary knows, usable or not.
#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "kernels/plugin/plugin_device.h"

namespace plumb::harness {

Action add_devices(CLI::App& app) {
  auto usable_only = std::make_shared<bool>(false);
  app.add_flag(
      "--usable", *usable_only,
      "only the names of usable devices, one per line, without the oracle and the emulated ones");
  return [usable_only] {
    for (const DeviceStatus& status : probe_devices()) {
      if (*usable_only) {
        if (status.usable && status.contestant) std::cout << status.name << "\n";
        continue;
      }
      std::cout << std::left << std::setw(13) << status.name << std::setw(12)
                << (status.usable ? "usable" : "not usable") << status.text << "\n";
    }
    if (*usable_only) return 0;
    const std::vector<LoadedPlugin> loaded = loaded_plugins();
    for (size_t i = 0; i < loaded.size(); ++i) {
      std::cout << std::left << std::setw(25) << "plugin" << describe_plugins()[i] << ", "
                << loaded[i].file << "\n";
    }
    return 0;
  };
}

}  // namespace plumb::harness
