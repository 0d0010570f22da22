// The explicit list of compiled-in devices, in the order of preference of "auto".
#include <algorithm>
#include <functional>
#include <iterator>

#include "kernels/core/device.h"
#include "kernels/core/error.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/gpu/device_list.h"
#include "kernels/ops/ops.h"
#include "kernels/oracle/float64_products.h"
#include "kernels/oracle/oracle_device.h"
#include "kernels/plugin/plugin_device.h"
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
      {"oracle", [](int threads) { return open_oracle_device(threads); }, false},
  };
  return rows;
}

struct Known {
  LoadedPlugin plugin;
  std::string description;
};

struct Registry {
  std::vector<Known> known;
  bool looser_contracts = false;
};

Registry& registry() {
  static Registry one;
  return one;
}

// The first of the known ones; the others are loaded on demand.
PluginLibraries& libraries() {
  static PluginLibraries loaded;
  return loaded;
}

PluginLibraries libraries_for(const std::string& device) {
  PluginLibraries out;
  std::copy_if(libraries().begin(), libraries().end(), std::back_inserter(out),
               [&](const auto& library) { return library->device() == device; });
  return out;
}

// By its name alone: to ask a GPU's driver here would keep the workers that are forked later from
// using it.
bool is_known(const std::string& device) {
  constexpr std::string_view kKinds[] = {"cpu", "oracle", "cuda", "hip", "emu", "emu-check"};
  const std::string kind = device.substr(0, device.find(':'));
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](std::string_view known) { return kind == known; }) ||
         std::any_of(libraries().begin(), libraries().end(), [&](const auto& library) {
           return library->memory() && library->device() == device;
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
  for (const auto& other : libraries_for(device)) {
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      if (!plugin.op(op) || !other->op(op)) continue;
      throw BadInput(text(where, ": ", name_of(op), " is replaced by ", other->file(), " already"));
    }
  }
}

// "my_norm replaces rms_norm of cpu"
std::string what_it_is(const PluginLibrary& library) {
  std::string ops;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (library.op(op)) ops += text(ops.empty() ? "" : ", ", name_of(op));
  }
  return library.memory() ? text(library.name(), " is device ", library.device(), " with ", ops)
                          : text(library.name(), " replaces ", ops, " of ", library.device());
}

const PluginLibrary& load_library(const std::string& file) {
  auto library = std::make_shared<const PluginLibrary>(file);
  require_fitting(*library);
  return *libraries().emplace_back(std::move(library));
}

void load_declared() {
  const std::vector<Known>& known = registry().known;
  while (libraries().size() < known.size()) load_library(known[libraries().size()].plugin.file);
}

// Limits are derived from contracts: a wider one must be meant.
std::unique_ptr<Device> checked(std::unique_ptr<Device> device) {
  if (looser_contracts_allowed()) return device;
  for (const auto& library : libraries_for(device->name())) {
    for (int op = 0; op < kOpCount; ++op) {
      if (!library->op(static_cast<OpId>(op))) continue;
      const std::string how = looser_contract(device->ops(), static_cast<OpId>(op), DType::f32);
      if (how.empty()) continue;
      throw BadInput(
          text("[plugin] ", library->file(), ": contract of ", how,
               ": its limits would be wider; mend the kernel or what it declares, or let "
               "results say so with --looser-contracts"));
    }
  }
  return device;
}

std::unique_ptr<Device> open_own_device(const std::string& name, int threads);

}  // namespace

void load_plugin(const std::string& file) {
  require(!file.empty(), "--plugin", "names no file");
  load_declared();
  const PluginLibrary& library = load_library(file);
  registry().known.push_back({{library.file(), library.device()}, what_it_is(library)});
}

void declare_plugin(LoadedPlugin plugin, std::string description) {
  registry().known.push_back({std::move(plugin), std::move(description)});
}

std::vector<LoadedPlugin> loaded_plugins() {
  std::vector<LoadedPlugin> out;
  for (const Known& it : registry().known) out.push_back(it.plugin);
  return out;
}

std::vector<std::string> describe_plugins() {
  std::vector<std::string> out;
  for (const Known& it : registry().known) out.push_back(it.description);
  return out;
}

void allow_looser_contracts(bool allowed) { registry().looser_contracts = allowed; }
bool looser_contracts_allowed() { return registry().looser_contracts; }

std::unique_ptr<Device> open_device(const std::string& name, int threads) {
  load_declared();
  for (const auto& library : libraries()) {
    if (library->memory() && library->device() == name) {
      return checked(open_plugin_device(library));
    }
  }
  std::unique_ptr<Device> device = open_own_device(name, threads);
  PluginLibraries replacing = libraries_for(device->name());
  return replacing.empty() ? std::move(device)
                           : checked(replace_ops(std::move(device), std::move(replacing)));
}

std::unique_ptr<Device> open_referee(Device& judged, int threads) {
  static_cast<void>(oracle_products());  // a word that is none is an error on every device
  return open_oracle_device(threads, judged.float64_products());
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
  load_declared();
  for (const auto& library : libraries()) {
    if (library->memory())
      out.push_back({library->device(), true, "plugin " + library->file(), false});
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
  if (kind == "cuda" || kind == "hip") gpu_number(name);  // must be one, even where there is none
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
