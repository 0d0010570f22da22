#include "kernels/cpu/sdpa_mask.h"

namespace plumb::cpu {
namespace {

// Differences of any two int64 values fit.
__extension__ typedef __int128 Wide;

int64_t clamp(Wide x, int64_t limit) {
  return x < 0 ? 0 : x > limit ? limit : static_cast<int64_t>(x);
}

}  // namespace

MaskRows::MaskRows(const AttentionMask& mask, const Simd& simd, int64_t keys)
    : mask_(mask),
      keys_(keys),
      format_(simd, mask.explicit_mask.defined() ? mask.explicit_mask.dtype() : DType::f32) {
  const Tensor& m = mask.explicit_mask;
  if (!m.defined()) return;
  lowest_ = static_cast<float>(-info(m.dtype()).max);
  batch_stride_ = m.dim(0) == 1 ? 0 : m.stride(0);
  head_stride_ = m.dim(1) == 1 ? 0 : m.stride(1);
}

MaskRows::Range MaskRows::range(int64_t t) const {
  Range range{0, keys_};
  if (mask_.explicit_mask.defined()) return range;
  // The query's slot counted from the first key's.
  const Wide q = Wide{mask_.query_offset} + t - mask_.key_offset;
  if (mask_.causal) range.end = clamp(q + 1, keys_);
  if (mask_.window) range.begin = clamp(q - *mask_.window + 1, keys_);
  return range;
}

const char* MaskRows::explicit_row(int64_t b, int64_t h, int64_t t) const {
  const Tensor& m = mask_.explicit_mask;
  const int64_t offset = b * batch_stride_ + h * head_stride_ + t * m.stride(2);
  return static_cast<const char*>(m.raw()) + offset * size_of(m.dtype());
}

void MaskRows::apply(float* scores, int64_t b, int64_t h, int64_t t, int64_t begin,
                     int64_t end) const {
  if (mask_.explicit_mask.defined()) {
    const char* row = explicit_row(b, h, t);
    if (mask_.explicit_mask.dtype() == DType::boolean) {
      for (int64_t s = begin; s < end; ++s) {
        if (!row[s]) scores[s - begin] = kExcluded;
      }
      return;
    }
    for (int64_t piece = begin; piece < end; piece += kPiece) {
      float buffer[kPiece];
      const int64_t n = std::min(kPiece, end - piece);
      const float* additive = format_.read(format_.at(row, piece), buffer, n);
      float* at = scores + (piece - begin);
      for (int64_t i = 0; i < n; ++i) {
        at[i] = additive[i] <= lowest_ ? kExcluded : at[i] + additive[i];
      }
    }
    return;
  }
  const Range allowed = range(t);
  for (int64_t s = begin; s < std::min(end, allowed.begin); ++s) scores[s - begin] = kExcluded;
  for (int64_t s = std::max(begin, allowed.end); s < end; ++s) scores[s - begin] = kExcluded;
  if (!mask_.key_valid.defined()) return;
  const char* valid = mask_.key_valid.data<char>() + b * mask_.key_valid.stride(0);
  for (int64_t s = std::max(begin, allowed.begin); s < std::min(end, allowed.end); ++s) {
    if (!valid[s]) scores[s - begin] = kExcluded;
  }
}

bool MaskRows::any_allowed(int64_t b, int64_t h, int64_t t) const {
  const Range allowed = range(t);
  for (int64_t begin = allowed.begin; begin < allowed.end; begin += kPiece) {
    float marks[kPiece] = {};
    const int64_t n = std::min(kPiece, allowed.end - begin);
    apply(marks, b, h, t, begin, begin + n);
    for (int64_t i = 0; i < n; ++i) {
      if (marks[i] != kExcluded) return true;
    }
  }
  return false;
}

}  // namespace plumb::cpu
