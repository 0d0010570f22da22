// Rotary position embedding (Su et al. 2021) and its table of cosines and sines. Roundings: after
// every product and after the sum, as transformers' apply_rotary_pos_emb does in separate tensor
// operations.
//
// x [B, H, T, D], cos, sin [B, T, r]; a unit of work is a few tokens with all their heads.
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
  float fastest = 0;
  for (int64_t i = 0; i < pairs; ++i) fastest = std::max(fastest, std::abs(frequencies[i]));
  pool_.for_each(position_at.count(), 6.0 * static_cast<double>(pairs), [&](int64_t row, int) {
    // The position and the angle are rounded to float32 as in transformers; the cosine is not.
    const float position = static_cast<float>(positions.data<int64_t>()[position_at[row]]);
    char* c = storage.at(static_cast<char*>(cos.raw()), cos_at[row]);
    char* s = storage.at(static_cast<char*>(sin.raw()), sin_at[row]);
    for (int64_t begin = 0; begin < pairs; begin += kPiece) {
      const int64_t n = std::min(kPiece, pairs - begin);
      float angles[kPiece], cosines[kPiece], sines[kPiece];
      simd_->rows[kF32].scale(angles, frequencies + begin, position, n);
      if (std::abs(position) * fastest <= kMostAngle) {
        simd_->cos_sin(cosines, sines, angles, attention_scaling, n);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const double angle = angles[i];
          cosines[i] = static_cast<float>(std::cos(angle) * attention_scaling);
          sines[i] = static_cast<float>(std::sin(angle) * attention_scaling);
        }
      }
      for (const int64_t column : {begin, begin + pairs}) {
        storage.write(storage.at(c, column), cosines, n);
        storage.write(storage.at(s, column), sines, n);
      }
    }
  });
}

namespace {

// One head of one token in float32, in place: x [D], cos, sin [r], scratch [r].
void rotate_row(const RowFunctions& rows, float* x, const float* cos, const float* sin,
                int64_t r, RotaryStyle style, float* scratch) {
  const int64_t pairs = r / 2;
  const auto rotate = rows.rotate;
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
  // A unit is a few tokens of one batch row with all their heads, which share the table; whichever
  // of tokens and heads are neighbours in memory follow each other.
  constexpr int64_t kTokens = 16;
  const int64_t blocks = (tokens + kTokens - 1) / kTokens;
  const bool tokens_inside = x.stride(1) > x.stride(2);
  // Scratch of one worker: a row, its pairs taken apart, cosines and sines of the tokens.
  const int64_t floats = width + r + 2 * kTokens * r;
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(DType::f32, {pool_.size(), floats});
  const double cost = static_cast<double>(std::min(tokens, kTokens) * heads * width);
  pool_.for_each(batch * blocks, cost, [&](int64_t unit, int worker) {
    const int64_t b = unit / blocks, first = unit % blocks * kTokens;
    const int64_t count = std::min(kTokens, tokens - first);
    float* row = scratch.data<float>() + worker * floats;
    const float *cosines[kTokens], *sines[kTokens];
    for (int64_t i = 0; i < count; ++i) {
      float* buffer = row + width + r + 2 * i * r;
      const auto table = [&](const Tensor& source, float* widened) {
        const int64_t offset = b * source.stride(0) + (first + i) * source.stride(1);
        return storage.read(storage.at(source, offset), widened, r);
      };
      cosines[i] = table(cos, buffer);
      sines[i] = table(sin, buffer + r);
    }
    for (int64_t n = 0; n < count * heads; ++n) {
      const int64_t i = tokens_inside ? n % count : n / heads;
      const int64_t h = tokens_inside ? n / count : n % heads;
      const auto offset = [&](const Tensor& t) {
        return b * t.stride(0) + h * t.stride(1) + (first + i) * t.stride(2);
      };
      storage.widen(row, storage.at(x, offset(x)), width);
      rotate_row(storage.rows(), row, cosines[i], sines[i], r, style, row + width);
      storage.write(storage.at(static_cast<char*>(out.raw()), offset(out)), row, width);
    }
  });
}

}  // namespace plumb::cpu
