// Every kind of device that this program knows, and the plugins that were loaded.
#include <algorithm>
#include <functional>
#include <iterator>

#include "kernels/core/device_kinds.h"
#include "kernels/core/error.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/emu/emu_device.h"
#include "kernels/gpu/device_list.h"
#include "kernels/hip/hip_device.h"
#include "kernels/opencl/opencl_device.h"
#include "kernels/ops/ops.h"
#include "kernels/oracle/float64_products.h"
#include "kernels/oracle/oracle_device.h"
#include "kernels/plugin/plugin_device.h"
#include "kernels/portable/emulated.h"
#include "kernels/vulkan/vulkan_device.h"

namespace plumb {
namespace {

struct Kind {
  std::string_view name;
  bool numbered;  // "cuda:1"
  std::function<std::vector<DeviceStatus>()> list;
  OpenDevice open;
};

// One that has no number.
Kind single(const char* name, bool contestant, std::unique_ptr<Device> (*open)(int threads)) {
  const auto list = [=]() -> std::vector<DeviceStatus> {
    try {
      return {{name, true, open(0)->describe(), contestant}};
    } catch (const Error& error) {
      return {{name, false, error.what(), contestant}};
    }
  };
  return {name, false, list, [=](const std::string&, int threads) { return open(threads); }};
}

Kind numbered(const char* name, std::vector<DeviceStatus> (*list)(),
              std::unique_ptr<Device> (*open)(const std::string& name)) {
  return {name, true, list, [=](const std::string& given, int) { return open(given); }};
}

// One that this build lacks. The number must be one all the same.
[[maybe_unused]] Kind absent(const char* name, bool contestant, const char* why) {
  const auto list = [=] { return std::vector<DeviceStatus>{{name, false, why, contestant}}; };
  return {name, true, list, [=](const std::string& given, int) -> std::unique_ptr<Device> {
            if (contestant) gpu_number(given);
            throw DeviceError(text("[device] ", given, ": ", why));
          }};
}

// In the order of preference of "auto".
std::vector<Kind>& kinds() {
  static std::vector<Kind> rows = {
#if defined(PLUMB_HAS_CUDA)
    numbered("cuda", list_cuda_devices, open_cuda_device),
#else
      absent("cuda", true, "this build has no CUDA backend; build with --preset cuda"),
#endif
#if defined(PLUMB_HAS_HIP)
    numbered("hip", list_hip_devices, open_hip_device),
#else
      absent("hip", true, "this build has no HIP backend; build with --preset hip"),
#endif
#if defined(PLUMB_HAS_VULKAN)
    numbered("vulkan", list_vulkan_devices, open_vulkan_device),
#else
      absent("vulkan", true, "this build has no Vulkan: install libvulkan-dev and build again"),
#endif
#if defined(PLUMB_HAS_OPENCL)
    numbered("opencl", list_opencl_devices, open_opencl_device),
#else
      absent("opencl", true, "this build has no OpenCL: install opencl-headers and build again"),
#endif
    single("cpu", true, open_cpu_device),
    single("oracle", false, [](int threads) { return open_oracle_device(threads); }),
#if defined(PLUMB_HAS_EMU)
    numbered("emu", list_emu_devices, open_emu_device),
    numbered(
        "emu-check", [] { return std::vector<DeviceStatus>(); }, open_emu_device),
#if defined(PLUMB_HAS_PORTABLE_CHECK)
    single("emu-portable", false, [](int) { return emu_check::open_portable("emu-portable"); }),
#endif
#else
      absent("emu", false, "this build has no emulated GPU (PLUMB_EMU)"),
#endif
  };
  return rows;
}

std::string_view kind_of(std::string_view device) { return device.substr(0, device.find(':')); }

const Kind* find_kind(std::string_view device) {
  for (const Kind& kind : kinds()) {
    if (kind.name == kind_of(device)) return &kind;
  }
  return nullptr;
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
  return find_kind(device) ||
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

// One of this program's own.
std::unique_ptr<Device> open_own_device(const std::string& name, int threads) {
  const Kind* kind = find_kind(name);
  if (kind && (kind->numbered || kind->name == name)) {
    std::unique_ptr<Device> device = kind->open(name, threads);
    if (TunedLinears* tuned = device->ops().tuned_linears()) {
      const std::string about = device->describe();
      tuned->read(TunedLinears::file_of(about), about);
    }
    return device;
  }
  std::string known;
  for (const DeviceStatus& status : list_devices()) {
    known += (known.empty() ? "" : ", ") + status.name;
  }
  throw UsageError(text("[device] unknown device \"", name, "\"; known: ", known));
}

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

void add_device_kind(std::string_view kind, OpenDevice open) {
  if (find_kind(kind)) return;
  kinds().push_back({kind, true, [] { return std::vector<DeviceStatus>(); }, std::move(open)});
}

bool is_device_kind(std::string_view device) { return find_kind(device) != nullptr; }

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
  for (const Kind& kind : kinds()) {
    for (const DeviceStatus& status : kind.list()) out.push_back(status);
  }
  load_declared();
  for (const auto& library : libraries()) {
    if (library->memory())
      out.push_back({library->device(), true, "plugin " + library->file(), false});
  }
  return out;
}

}  // namespace plumb
