// The mask as a tensor: bool, or additive with the dtype's lowest finite number (minus infinity
// when fully_masked is zero) where a key is not allowed.
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/sdpa_mask.h"

namespace plumb::cpu {
namespace {

// Elements of a mask as they are stored.
template <class Element>
struct MaskElements {
  Element allowed, excluded;

  void fill_row(Element* out, const MaskRows& rows, int64_t b, int64_t h, int64_t t,
                int64_t keys) const {
    const MaskRows::Range range = rows.range(t);
    const int64_t begin = std::min(range.begin, range.end);
    std::fill(out, out + begin, excluded);
    std::fill(out + begin, out + range.end, allowed);
    std::fill(out + range.end, out + keys, excluded);
    if (rows.only_ranges()) return;
    for (int64_t first = begin; first < range.end; first += kPiece) {
      float marks[kPiece] = {};
      const int64_t n = std::min(kPiece, range.end - first);
      rows.apply(marks, b, h, t, first, first + n);
      for (int64_t i = 0; i < n; ++i) {
        if (marks[i] == MaskRows::kExcluded) out[first + i] = excluded;
      }
    }
  }
};

}  // namespace

void CpuOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  const bool boolean = out.dtype() == DType::boolean;
  if (boolean) settle_for_simd();
  else format("causal_mask", out);
  if (out.numel() == 0) return;
  const int64_t heads = out.dim(1), queries = out.dim(2), keys = out.dim(3);
  const MaskRows rows(mask, *simd_, keys);
  const RowOffsets to(out);
  const auto fill = [&]<class Element>(const MaskElements<Element>& elements) {
    pool_.for_each(to.count(), 0.1 * static_cast<double>(keys), [&](int64_t row, int) {
      const int64_t t = row % queries, h = row / queries % heads, b = row / queries / heads;
      elements.fill_row(out.data<Element>() + to[row], rows, b, h, t, keys);
    });
  };
  if (boolean) return fill(MaskElements<uint8_t>{1, 0});
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float excluded = mask.fully_masked == FullyMasked::zero
                             ? -infinity
                             : static_cast<float>(-info(out.dtype()).max);
  if (out.dtype() == DType::f32) return fill(MaskElements<float>{0, excluded});
  uint16_t code = 0;
  store(out.dtype(), &code, excluded);
  fill(MaskElements<uint16_t>{0, code});
}

}  // namespace plumb::cpu
