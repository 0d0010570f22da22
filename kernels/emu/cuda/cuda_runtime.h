// What a plain CUDA file expects of its compiler and of <cuda_runtime.h>, for the emulated GPU.
// `harness plugin-flags --source FILE` puts this in front of a copy of the file, in which launches
// (kernel<<<...>>>) and __shared__ variables are calls of launch.h.
//
// What there is not does not compile: inline PTX, wmma, textures, dynamic parallelism, managed
// memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/gpu/gpu.h"

#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

#include "kernels/emu/cuda/atomics.h"
#include "kernels/emu/cuda/functions.h"
#include "kernels/emu/cuda/host.h"
#include "kernels/emu/cuda/launch.h"
#include "kernels/emu/cuda/vectors.h"
#include "kernels/emu/cuda/warp.h"
