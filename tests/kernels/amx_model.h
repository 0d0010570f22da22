// The instruction set amx_bf16 with a model in place of the processor's tiles.
#pragma once

#include "kernels/cpu/simd.h"

namespace plumb::cpu {

const Simd* amx_model();  // null where this processor lacks avx512_bf16, which it contains

}  // namespace plumb::cpu
