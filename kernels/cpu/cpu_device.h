// The CPU device: float32 arithmetic on f32, f16 and bf16 tensors, vectorised and threaded.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "kernels/cpu/simd.h"

namespace plumb {

// `threads` 0 means one per core that this process may use. The environment variable
// PLUMB_ISA=baseline|avx2|avx512|avx512_bf16|amx_bf16 forces an instruction set; one that is
// unknown or that this machine lacks throws UsageError naming the choices.
std::unique_ptr<Device> open_cpu_device(int threads);
// The same with this table, which the machine must be able to run.
std::unique_ptr<Device> open_cpu_device_of(const cpu::Simd& simd, int threads);

// "AMD EPYC, avx2, 2 threads, oneDNN 2.6.3": what open_cpu_device(0) would give. Throws as it does.
std::string describe_cpu();

}  // namespace plumb
