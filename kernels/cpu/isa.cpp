#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <fstream>

#ifdef PLUMB_X86_SIMD
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "kernels/core/error.h"

namespace plumb::cpu {
namespace {

#ifdef PLUMB_X86_SIMD
bool has_f16c() {  // clang 14's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// Tiles are so large that Linux saves them for a process, all its threads, only once it has asked.
bool allows_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl; a state component
  static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
#else
  return false;
#endif
}

bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile) &&
         allows_tiles();
}
#endif

}  // namespace

std::vector<const Simd*> compiled_simds() {
#ifdef PLUMB_X86_SIMD
  return {&simd_baseline(), &simd_avx2(), &simd_avx512(), &simd_avx512_bf16(), &simd_amx_bf16()};
#else
  return {&simd_baseline()};
#endif
}

std::vector<const Simd*> usable_simds() {
  std::vector<const Simd*> usable = {&simd_baseline()};
#ifdef PLUMB_X86_SIMD
  // These also ask the operating system whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
    usable.push_back(&simd_avx2());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      usable.push_back(&simd_avx512());
      if (__builtin_cpu_supports("avx512bf16")) {
        usable.push_back(&simd_avx512_bf16());
        if (has_amx_bf16()) usable.push_back(&simd_amx_bf16());
      }
    }
  }
#endif
  return usable;
}

const Simd& choose_simd() {
  const std::vector<const Simd*> usable = usable_simds();
  const char* forced = std::getenv("PLUMB_ISA");
  if (!forced || !*forced) return *usable.back();
  std::string choices;
  for (const Simd* simd : usable) {
    if (forced == std::string(simd->name)) return *simd;
    choices += (choices.empty() ? "" : ", ") + std::string(simd->name);
  }
  throw UsageError(text("[cpu] PLUMB_ISA is '", forced, "', this machine has ", choices));
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace plumb::cpu
