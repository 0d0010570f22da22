#include "kernels/emu/emu_device.h"

#include <cstdlib>

#include "kernels/core/error.h"
#include "kernels/emu/open.h"

namespace plumb {
namespace {

struct Row {
  const char* name;
  const char* alias;
  int wave;
  bool checked;
};
constexpr Row kRows[] = {{"emu:32", "emu", 32, false},
                         {"emu:64", "", 64, false},
                         {"emu-check:32", "emu-check", 32, true},
                         {"emu-check:64", "", 64, true}};
#if defined(PLUMB_HAS_EMU_CHECK)
constexpr bool kHasCheck = true;
#else
constexpr bool kHasCheck = false;
#endif
constexpr const char* kNoCheck =
    "this build has no checked kernels; build with PLUMB_EMU_CHECK=ON, without AddressSanitizer";

std::string describe(const Row& row) {
  const char* seed = std::getenv("PLUMB_EMU_SEED");
  return text("the GPU kernels on the CPU, ", row.wave, " lanes a wave",
              row.checked ? ", every access checked" : "", seed && *seed ? ", seed " : "",
              seed ? seed : "");
}

}  // namespace

std::vector<DeviceStatus> list_emu_devices() {
  std::vector<DeviceStatus> out;
  for (const Row& row : kRows) {
    const bool usable = kHasCheck || !row.checked;
    out.push_back({row.name, usable, usable ? describe(row) : kNoCheck, false});
  }
  return out;
}

std::unique_ptr<Device> open_emu_device(const std::string& name) {
  for (const Row& row : kRows) {
    if (name != row.name && (name != row.alias || name.empty())) continue;
    if (!row.checked) return emu::open(row.name, describe(row), row.wave);
#if defined(PLUMB_HAS_EMU_CHECK)
    return emu_check::open(row.name, describe(row), row.wave);
#else
    throw DeviceError(text("[device] ", row.name, ": ", kNoCheck));
#endif
  }
  throw UsageError(text("[device] unknown device \"", name,
                        "\"; the emulated ones are emu:32, emu:64, emu-check:32 and emu-check:64"));
}

}  // namespace plumb
