// The mask as a tensor: bool, or additive with the dtype's lowest finite number (minus infinity
// when fully_masked is zero) where a key is not allowed.
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/sdpa_mask.h"

namespace plumb::cpu {

void CpuOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  const bool boolean = out.dtype() == DType::boolean;
  if (boolean) settle_for_simd();
  const Format storage = boolean ? Format(*simd_, DType::f32) : format("causal_mask", out);
  if (out.numel() == 0) return;
  const int64_t heads = out.dim(1), queries = out.dim(2), keys = out.dim(3);
  const MaskRows rows(mask, *simd_, keys);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float masked = mask.fully_masked == FullyMasked::zero
                           ? -infinity
                           : static_cast<float>(-info(out.dtype()).max);
  const RowOffsets to(out);
  pool_.for_each(to.count(), static_cast<double>(keys), [&](int64_t row, int) {
    const int64_t t = row % queries, h = row / queries % heads, b = row / queries / heads;
    for (int64_t begin = 0; begin < keys; begin += kPiece) {
      float values[kPiece] = {};
      const int64_t n = std::min(kPiece, keys - begin);
      rows.apply(values, b, h, t, begin, begin + n);
      if (boolean) {
        char* target = out.data<char>() + to[row] + begin;
        for (int64_t i = 0; i < n; ++i) target[i] = values[i] != -infinity;
        continue;
      }
      for (int64_t i = 0; i < n; ++i) values[i] = values[i] == -infinity ? masked : 0;
      storage.write(storage.at(static_cast<char*>(out.raw()), to[row] + begin), values, n);
    }
  });
}

}  // namespace plumb::cpu
