// The explicit list of compiled-in devices, in the order of preference of "auto".
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/ops.h"
#include "kernels/oracle/oracle_device.h"
#if defined(PLUMB_HAS_EMU)
#include "kernels/emu/emu_device.h"
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

}  // namespace

std::vector<DeviceStatus> list_devices() {
  std::vector<DeviceStatus> out = {
      {"cuda", false, "this build has no CUDA backend", true},
      {"hip", false, "this build has no HIP backend", true},
  };
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
  return out;
}

std::unique_ptr<Device> open_device(const std::string& name, int threads) {
  for (const Row& row : table()) {
    if (name == row.name) return row.open(threads);
  }
  const std::string kind = name.substr(0, name.find(':'));
#if defined(PLUMB_HAS_EMU)
  if (kind == "emu" || kind == "emu-check") return open_emu_device(name);
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

}  // namespace plumb
