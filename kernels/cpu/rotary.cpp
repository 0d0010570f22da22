// Rotary position embedding (Su et al. 2021) and its table of cosines and sines. Roundings: after
// every product and after the sum, as transformers' apply_rotary_pos_emb does in separate tensor
// operations.
//
// x [B, H, T, D], cos, sin [B, T, r].
#include <cmath>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"

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

// [pairs, 2] to [2, pairs] and back; elements are moved as they are.
template <class Element>
void deinterleave(void* to, const void* from, int64_t pairs) {
  auto* out = static_cast<Element*>(to);
  const auto* in = static_cast<const Element*>(from);
  for (int64_t i = 0; i < pairs; ++i) {
    out[i] = in[2 * i];
    out[pairs + i] = in[2 * i + 1];
  }
}
template <class Element>
void interleave(void* to, const void* from, int64_t pairs) {
  auto* out = static_cast<Element*>(to);
  const auto* in = static_cast<const Element*>(from);
  for (int64_t i = 0; i < pairs; ++i) {
    out[2 * i] = in[i];
    out[2 * i + 1] = in[pairs + i];
  }
}

// One head of one token: out, x [D], cos, sin [r], scratch [r].
struct Rotation {
  const Format& storage;
  RotaryStyle style;
  int64_t head_dim, pairs;
  bool inverse;  // the other half's sine has the other sign: that is, the halves are exchanged

  void row(char* out, const char* x, const char* cos, const char* sin, char* scratch) const {
    const auto second = [this](auto* row) { return storage.at(row, pairs); };
    const auto rotate = storage.rows().rotate;
    if (style == RotaryStyle::half && inverse) {
      rotate(second(out), out, second(x), x, second(cos), sin, cos, second(sin), pairs);
    } else if (style == RotaryStyle::half) {
      rotate(out, second(out), x, second(x), cos, sin, second(cos), second(sin), pairs);
    } else {
      (storage.wide() ? deinterleave<uint32_t> : deinterleave<uint16_t>)(scratch, x, pairs);
      char *a = scratch, *b = second(scratch);
      if (inverse) std::swap(a, b);
      rotate(a, b, a, b, cos, sin, cos, sin, pairs);
      (storage.wide() ? interleave<uint32_t> : interleave<uint16_t>)(out, scratch, pairs);
    }
    const int64_t rest = head_dim - 2 * pairs;
    if (rest == 0) return;
    std::memmove(storage.at(out, 2 * pairs), storage.at(x, 2 * pairs),
                 static_cast<size_t>(rest * storage.size()));
  }
};

}  // namespace

void CpuOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       RotaryStyle style) {
  turn("rotary", out, x, cos, sin, style, false);
}

void CpuOps::do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                                const Tensor& sin, RotaryStyle style) {
  turn("rotary_backward", d_x, d_out, cos, sin, style, true);
}

void CpuOps::turn(const char* op, const Tensor& out, const Tensor& x, const Tensor& cos,
                  const Tensor& sin, RotaryStyle style, bool inverse) {
  const Format storage = format(op, x);
  if (x.numel() == 0) return;
  const int64_t batch = x.dim(0), heads = x.dim(1), tokens = x.dim(2), head_dim = x.dim(3);
  const int64_t r = cos.dim(2);
  const Rotation rotation{storage, style, head_dim, r / 2, inverse};
  // A unit goes through memory in its order: tokens of one head, or all heads of a few tokens.
  const bool tokens_inside = x.stride(1) > x.stride(2);
  const int64_t unit_heads = tokens_inside ? 1 : heads;
  const int64_t unit_tokens = std::min<int64_t>(tokens, tokens_inside ? 128 : 16);
  const int64_t blocks = (tokens + unit_tokens - 1) / unit_tokens;
  const int64_t groups = heads / unit_heads;
  Arena::Scope scope(arena());
  const Tensor scratch = arena().take(x.dtype(), {pool_.size(), r});
  const double cost = 0.5 * static_cast<double>(unit_tokens * unit_heads * head_dim);
  const int64_t x_head = x.stride(1), x_token = x.stride(2), cos_token = cos.stride(1);
  const int64_t out_head = out.stride(1), out_token = out.stride(2), sin_token = sin.stride(1);
  pool_.for_each(batch * groups * blocks, cost, [&](int64_t unit, int worker) {
    const int64_t b = unit / blocks / groups, group = unit / blocks % groups;
    const int64_t first = unit % blocks * unit_tokens;
    const int64_t end = std::min(tokens, first + unit_tokens);
    char* line = storage.at(static_cast<char*>(scratch.raw()), worker * r);
    const auto head = [&](const Tensor& a) {
      return b * a.stride(0) + group * unit_heads * a.stride(1);
    };
    char* to = storage.at(static_cast<char*>(out.raw()), head(out));
    const char* from = storage.at(x, head(x));
    const char *c = storage.at(cos, b * cos.stride(0)), *s = storage.at(sin, b * sin.stride(0));
    for (int64_t t = first; t < end; ++t) {
      for (int64_t h = 0; h < unit_heads; ++h) {
        rotation.row(storage.at(to, t * out_token + h * out_head),
                     storage.at(from, t * x_token + h * x_head), storage.at(c, t * cos_token),
                     storage.at(s, t * sin_token), line);
      }
    }
  });
}

}  // namespace plumb::cpu
