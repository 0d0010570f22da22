// Attention that only NVIDIA GPUs have, behind GpuOps::library_sdpa.
#pragma once

#include <vector>

#include "kernels/gpu/gpu_ops.h"

namespace plumb::cuda {

// Those compiled in; absent where the current device cannot run them.
std::vector<Implementation> sdpa_implementations();

}  // namespace plumb::cuda
