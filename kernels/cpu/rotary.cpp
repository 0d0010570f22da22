// Rotary position embedding (Su et al. 2021) and its table of cosines and sines. Roundings: after
// every product and after the sum, as transformers' apply_rotary_pos_emb does in separate tensor
// operations.
//
// x [B, H, T, D], cos, sin [B, T, r]; a unit of work is one row of D.
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/error.h"

namespace plumb::cpu {

void CpuOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                             const Tensor& inv_freq, double attention_scaling) {
  const Format storage = format("rotary_table", cos);
  const int64_t pairs = inv_freq.dim(0);
  const RowOffsets cos_at(cos), sin_at(sin), position_at(positions, 0);
  const float* frequencies = inv_freq.data<float>();
  pool_.for_each(position_at.count(), 60.0 * static_cast<double>(pairs), [&](int64_t row, int) {
    // The position and the angle are rounded to float32 as in transformers; the cosine is not.
    const float position = static_cast<float>(positions.data<int64_t>()[position_at[row]]);
    char* c = storage.at(static_cast<char*>(cos.raw()), cos_at[row]);
    char* s = storage.at(static_cast<char*>(sin.raw()), sin_at[row]);
    for (int64_t begin = 0; begin < pairs; begin += kPiece) {
      const int64_t n = std::min(kPiece, pairs - begin);
      float cosines[kPiece], sines[kPiece];
      for (int64_t i = 0; i < n; ++i) {
        const double angle = position * frequencies[begin + i];
        cosines[i] = static_cast<float>(std::cos(angle) * attention_scaling);
        sines[i] = static_cast<float>(std::sin(angle) * attention_scaling);
      }
      for (const int64_t column : {begin, begin + pairs}) {
        storage.write(storage.at(c, column), cosines, n);
        storage.write(storage.at(s, column), sines, n);
      }
    }
  });
}

namespace {

// One head of one token in float32, in place: x [D], cos, sin [r], scratch [2 r].
void rotate_row(const Simd& simd, int rounding, float* x, const float* cos, const float* sin,
                int64_t r, RotaryStyle style, float* scratch) {
  const int64_t pairs = r / 2;
  const auto rotate = simd.rotate[rounding];
  if (style == RotaryStyle::half) {
    rotate(x, x + pairs, x, x + pairs, cos, sin, cos + pairs, sin + pairs, pairs);
    return;
  }
  float* even = scratch;
  float* odd = scratch + pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
  rotate(even, odd, even, odd, cos, sin, cos, sin, pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    x[2 * i] = even[i];
    x[2 * i + 1] = odd[i];
  }
}

}  // namespace

void CpuOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       RotaryStyle style) {
  const Format storage = format("rotary", x);
  if (x.numel() == 0) return;
  const int64_t batch = x.dim(0), heads = x.dim(1), tokens = x.dim(2), width = x.dim(3);
  const int64_t r = cos.dim(2);
  // Scratch of one worker: the row, its cosines and sines, the pairs taken apart.
  const int64_t floats = width + 3 * r;
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  // A unit is one token of one batch row with all its heads, which share the table.
  pool_.for_each(batch * tokens, static_cast<double>(heads * width), [&](int64_t unit, int worker) {
    const int64_t b = unit / tokens, t = unit % tokens;
    float* row = scratch.data<float>() + worker * floats;
    const auto table = [&](const Tensor& source, float* buffer) {
      return storage.read(storage.at(source, b * source.stride(0) + t * source.stride(1)), buffer,
                          r);
    };
    const float* c = table(cos, row + width);
    const float* s = table(sin, row + width + r);
    for (int64_t h = 0; h < heads; ++h) {
      const auto offset = [&](const Tensor& tensor) {
        return b * tensor.stride(0) + h * tensor.stride(1) + t * tensor.stride(2);
      };
      storage.widen(row, storage.at(x, offset(x)), width);
      rotate_row(*simd_, storage.index(), row, c, s, r, style, row + width + 2 * r);
      storage.write(storage.at(static_cast<char*>(out.raw()), offset(out)), row, width);
    }
  });
}

}  // namespace plumb::cpu
