#include "kernels/cpu/cpu_ops.h"

#include "kernels/error.h"

namespace plumb::cpu {

// Products of two 16-bit values are exact in float32, and all sums are float32. The fused ops keep
// the rounding points of their composition in registers; only sdpa rounds nothing before its
// output.
Contract CpuOps::contract(OpId op, DType storage) const {
  return {storage, storage, {}, op == OpId::sdpa ? RoundingPoints::fused : RoundingPoints::eager};
}

Format CpuOps::format(const char* op, const Tensor& t) {
  const DType dtype = t.dtype();
  require<Unsupported>(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16, op,
                       "the cpu device computes in f32, f16 and bf16, not in ", name_of(dtype));
  used(simd_.name);
  return Format(simd_, dtype);
}

}  // namespace plumb::cpu
