// The planted faults of the emulator's own test, as seen from outside: one list per build of the
// kernels.
#pragma once

#include <cstdint>
#include <vector>

namespace plumb {

struct FaultCase {
  const char* name;
  const char* checked;  // in the error of emu-check; null: the result is wrong
  const char* plain;    // in the error of emu; null: it need not notice
  bool at_32;           // a fault at wave width 32, too
  // Run the planted fault or its repaired twin; whether the result is right. Throw DeviceError.
  bool (*wrong)(int wave, uint64_t seed);
  bool (*right)(int wave, uint64_t seed);
};

namespace emu {
const std::vector<FaultCase>& fault_cases();
}
namespace emu_check {
const std::vector<FaultCase>& fault_cases();
}

}  // namespace plumb
