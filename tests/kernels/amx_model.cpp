#include "tests/kernels/amx_model.h"

#include <algorithm>

#include "kernels/cpu/isa.h"

namespace plumb::cpu {

#ifdef PLUMB_X86_SIMD
const Simd& simd_amx_model();

const Simd* amx_model() {
  const auto usable = usable_simds();
  const bool runs = std::find(usable.begin(), usable.end(), &simd_avx512_bf16()) != usable.end();
  return runs ? &simd_amx_model() : nullptr;
}
#else
const Simd* amx_model() { return nullptr; }
#endif

}  // namespace plumb::cpu
