// The explicit list of compiled-in devices, in the order of preference of "auto".
#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/ops.h"
#include "kernels/oracle/oracle_device.h"
#include "kernels/plugin_device.h"
#if defined(PLUMB_HAS_EMU)
#include "kernels/emu/emu_device.h"
#endif
#if defined(PLUMB_HAS_CUDA)
#include "kernels/cuda/cuda_device.h"
#endif
#if defined(PLUMB_HAS_HIP)
#include "kernels/hip/hip_device.h"
#endif

namespace plumb {
namespace {

struct Row {
  const char* name;
  std::function<std::unique_ptr<Device>(int threads)> open;
  bool contestant;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"cpu", open_cpu_device, true},
      {"oracle", [](int) { return open_oracle_device(); }, false},
  };
  return rows;
}

PluginLibraries& plugins() {
  static PluginLibraries loaded;
  return loaded;
}

PluginLibraries plugins_for(const std::string& device) {
  PluginLibraries out;
  std::copy_if(plugins().begin(), plugins().end(), std::back_inserter(out),
               [&](const auto& plugin) { return plugin->device() == device; });
  return out;
}

// By its name alone: to ask a GPU's driver here would keep the workers that are forked later from
// using it.
bool is_known(const std::string& device) {
  constexpr std::string_view kKinds[] = {"cpu", "oracle", "cuda", "hip", "emu", "emu-check"};
  const std::string kind = device.substr(0, device.find(':'));
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](std::string_view known) { return kind == known; }) ||
         std::any_of(plugins().begin(), plugins().end(), [&](const auto& plugin) {
           return plugin->memory() && plugin->device() == device;
         });
}

// Throws BadInput when the plugin contradicts the devices, or another plugin.
void require_fitting(const PluginLibrary& plugin) {
  const std::string device = plugin.device();
  const bool known = is_known(device);
  const std::string where = text("[plugin] ", plugin.file(), ": device \"", device, '"');
  if (plugin.memory() && known) {
    throw BadInput(where + " exists already; give a device of its own another name");
  }
  if (!plugin.memory() && !known) {
    throw BadInput(where + " is unknown, see harness devices; a device of its own needs memory");
  }
  for (const auto& other : plugins_for(device)) {
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      if (!plugin.op(op) || !other->op(op)) continue;
      throw BadInput(text(where, ": ", name_of(op), " is replaced by ", other->file(), " already"));
    }
  }
}

std::unique_ptr<Device> open_own_device(const std::string& name, int threads);

}  // namespace

void load_plugin(const std::string& file) {
  require(!file.empty(), "--plugin", "names no file");
  auto plugin = std::make_shared<const PluginLibrary>(file);
  require_fitting(*plugin);
  plugins().push_back(std::move(plugin));
}

std::vector<LoadedPlugin> loaded_plugins() {
  std::vector<LoadedPlugin> out;
  for (const auto& plugin : plugins()) out.push_back({plugin->file(), plugin->device()});
  return out;
}

std::unique_ptr<Device> open_device(const std::string& name, int threads) {
  for (const auto& plugin : plugins()) {
    if (plugin->memory() && plugin->device() == name) return open_plugin_device(plugin);
  }
  std::unique_ptr<Device> device = open_own_device(name, threads);
  PluginLibraries replacing = plugins_for(device->name());
  return replacing.empty() ? std::move(device)
                           : replace_ops(std::move(device), std::move(replacing));
}

double Device::time(const std::function<void()>& queue_work) {
  using Clock = std::chrono::steady_clock;
  synchronize();
  const auto start = Clock::now();
  queue_work();
  synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<DeviceStatus> list_devices() {
  std::vector<DeviceStatus> out;
#if defined(PLUMB_HAS_CUDA)
  for (const DeviceStatus& status : list_cuda_devices()) out.push_back(status);
#else
  out.push_back({"cuda", false, "this build has no CUDA backend; build with --preset cuda"});
#endif
#if defined(PLUMB_HAS_HIP)
  for (const DeviceStatus& status : list_hip_devices()) out.push_back(status);
#else
  out.push_back({"hip", false, "this build has no HIP backend; build with --preset hip"});
#endif
  for (const Row& row : table()) {
    try {
      out.push_back({row.name, true, row.open(0)->describe(), row.contestant});
    } catch (const Error& error) {
      out.push_back({row.name, false, error.what(), row.contestant});
    }
  }
#if defined(PLUMB_HAS_EMU)
  for (const DeviceStatus& status : list_emu_devices()) out.push_back(status);
#else
  out.push_back({"emu", false, "this build has no emulated GPU (PLUMB_EMU)", false});
#endif
  for (const auto& plugin : plugins()) {
    if (plugin->memory())
      out.push_back({plugin->device(), true, "plugin " + plugin->file(), false});
  }
  return out;
}

namespace {

// One of this binary's own.
std::unique_ptr<Device> open_own_device(const std::string& name, int threads) {
  for (const Row& row : table()) {
    if (name == row.name) return row.open(threads);
  }
  const std::string kind = name.substr(0, name.find(':'));
#if defined(PLUMB_HAS_EMU)
  if (kind == "emu" || kind == "emu-check") return open_emu_device(name);
#endif
#if defined(PLUMB_HAS_CUDA)
  if (kind == "cuda") return open_cuda_device(name);
#endif
#if defined(PLUMB_HAS_HIP)
  if (kind == "hip") return open_hip_device(name);
#endif
  std::string known;
  for (const DeviceStatus& status : list_devices()) {
    if (status.name == kind && !status.usable) {
      throw DeviceError(text("[device] ", name, ": ", status.text));
    }
    known += (known.empty() ? "" : ", ") + status.name;
  }
  throw UsageError(text("[device] unknown device \"", name, "\"; known: ", known));
}

}  // namespace

}  // namespace plumb
