// The explicit list of compiled-in devices, in the order of preference of "auto".
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/ops.h"
#include "kernels/oracle/oracle_device.h"

namespace plumb {
namespace {

struct Row {
  const char* name;
  std::function<std::unique_ptr<Device>(int threads)> open;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"cpu", open_cpu_device},
      {"oracle", [](int) { return open_oracle_device(); }},
  };
  return rows;
}

}  // namespace

std::vector<DeviceStatus> list_devices() {
  std::vector<DeviceStatus> out = {
      {"cuda", false, "this build has no CUDA backend"},
      {"hip", false, "this build has no HIP backend"},
  };
  for (const Row& row : table()) {
    try {
      out.push_back({row.name, true, row.open(0)->describe()});
    } catch (const Error& error) {
      out.push_back({row.name, false, error.what()});
    }
  }
  return out;
}

std::unique_ptr<Device> open_device(const std::string& name, int threads) {
  for (const Row& row : table()) {
    if (name == row.name) return row.open(threads);
  }
  const std::string kind = name.substr(0, name.find(':'));
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
