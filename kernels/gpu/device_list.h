// "cuda", "cuda:1", "hip:0": a name resolved against the GPUs that a vendor listed.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/error.h"

namespace plumb {

// The N of "cuda:N", 0 of "cuda". Throws UsageError for a name that is none.
inline int gpu_number(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return 0;
  const std::string kind = name.substr(0, colon), digits = name.substr(colon + 1);
  require(!digits.empty() && digits.size() <= 4 &&
              digits.find_first_not_of("0123456789") == std::string::npos,
          "device", '"', name, "\": \"", digits, "\" is not the number of a GPU; expected ", kind,
          " or ", kind, ":N, counted from 0");
  return std::stoi(digits);
}

// The number of the GPU that `name` means; the kind alone means the first. `all` is one row per
// GPU, or a single row named by the kind with the reason why there is none. Throws UsageError for a
// name that is none, DeviceError for a GPU that does not exist or cannot be used.
inline int usable_gpu(const std::vector<DeviceStatus>& all, const std::string& name) {
  const int ordinal = gpu_number(name);
  const std::string kind = name.substr(0, name.find(':'));
  if (all.front().name == kind) throw DeviceError(text("[device] ", name, ": ", all.front().text));
  require<DeviceError>(ordinal < static_cast<int>(all.size()), "device", name,
                       ": the number is out of range, this machine has ", all.size(), ' ', kind,
                       " GPU(s), counted from 0");
  const DeviceStatus& status = all[static_cast<size_t>(ordinal)];
  require<DeviceError>(status.usable, "device", status.name, ": ", status.text);
  return ordinal;
}

}  // namespace plumb
