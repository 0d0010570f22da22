// The row functions of one instruction set. This file is compiled several times, with different
// target flags and with PLUMB_SIMD_TABLE naming the table's function (CMakeLists.txt).
//
// It must not use the standard library: an inline function or template of it compiled here would be
// a weak symbol containing, say, AVX-512 code, the linker keeps one copy of a weak symbol for the
// whole program, and that copy could then run on a machine without AVX-512. For the same reason all
// but the table sits in anonymous namespaces.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

namespace plumb::cpu {
namespace {

enum Rounding { kF16, kBf16, kNone };

template <Rounding R>
inline H narrow(F x) {
  return R == kF16 ? narrow_f16(x) : narrow_bf16(x);
}
template <Rounding R>
inline F widen(H h) {
  return R == kF16 ? widen_f16(h) : widen_bf16(h);
}
template <Rounding R>
inline F rounded(F x) {
  if constexpr (R == kNone) {
    return x;
  } else if constexpr (R == kBf16) {
    return round_bf16(x);
  } else {
    return widen_f16(narrow_f16(x));
  }
}

// Element by element: f(at) computes one vector from its inputs, at(row) loads an input there.

template <class Function>
inline void each(float* out, int64_t n, Function f) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    store(out + i, f([i](const float* x) { return load(x + i); }));
  if (i == n) return;
  store(out + i, f([i, n](const float* x) { return load(x + i, n - i, 0.0f); }), n - i);
}

template <Rounding R>
void widen_row(float* out, const uint16_t* in, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, widen<R>(load(in + i)));
  if (i < n) store(out + i, widen<R>(load(in + i, n - i)), n - i);
}

template <Rounding R>
void narrow_row(uint16_t* out, const float* in, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, narrow<R>(load(in + i)));
  if (i < n) store(out + i, narrow<R>(load(in + i, n - i, 0.0f)), n - i);
}

template <Rounding R>
void round_row(float* out, const float* in, int64_t n) {
  each(out, n, [=](auto at) { return rounded<R>(at(in)); });
}

void add(float* out, const float* a, const float* b, int64_t n) {
  each(out, n, [=](auto at) { return at(a) + at(b); });
}
void mul(float* out, const float* a, const float* b, int64_t n) {
  each(out, n, [=](auto at) { return at(a) * at(b); });
}
void scale(float* out, const float* x, float factor, int64_t n) {
  each(out, n, [=](auto at) { return at(x) * splat(factor); });
}
void divide(float* out, const float* x, float divisor, int64_t n) {
  each(out, n, [=](auto at) { return at(x) / splat(divisor); });
}

template <F (*Function)(F)>
void activate(float* out, const float* x, int64_t n) {
  each(out, n, [=](auto at) { return Function(at(x)); });
}

void score(float* x, float factor, float cap, int64_t n) {
  if (cap > 0) {
    each(x, n, [=](auto at) {
      return splat(cap) * hyperbolic_tangent(at(x) * splat(factor) / splat(cap));
    });
  } else if (factor != 1) {
    scale(x, x, factor, n);
  }
}

void weighted(float* out, const float* x, const float* weight, float offset, int64_t n) {
  each(out, n, [=](auto at) { return (splat(offset) + at(weight)) * at(x); });
}

void normalised(float* out, const float* x, float mean, float factor, const float* weight,
                const float* bias, int64_t n) {
  if (bias) {
    each(out, n,
         [=](auto at) { return (at(x) - splat(mean)) * splat(factor) * at(weight) + at(bias); });
  } else {
    each(out, n, [=](auto at) { return (at(x) - splat(mean)) * splat(factor) * at(weight); });
  }
}

template <Rounding R>
void rotate(float* y1, float* y2, const float* x1, const float* x2, const float* c1,
            const float* s1, const float* c2, const float* s2, int64_t n) {
  const auto r = [](F v) { return rounded<R>(v); };
  for (int64_t i = 0; i < n; i += kWidth) {
    const int64_t count = n - i < kWidth ? n - i : kWidth;
    const auto at = [=](const float* p) {
      return count == kWidth ? load(p + i) : load(p + i, count, 0.0f);
    };
    const auto put = [=](float* p, F v) {
      if (count == kWidth) store(p + i, v);
      else store(p + i, v, count);
    };
    const F a = at(x1), b = at(x2);
    const F first = r(r(a * at(c1)) - r(b * at(s1)));
    const F second = r(r(b * at(c2)) + r(a * at(s2)));
    put(y1, first);
    put(y2, second);
  }
}

// Sums: kLanes partial sums, then a fixed tree.

constexpr int kParts = kLanes / kWidth;

struct Partial {
  F part[kParts];
};

// Lane j and lane j + half are added, for half 16, 8, 4, 2, 1.
inline float total(Partial& partial) {
  F* part = partial.part;
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) part[j] += part[j + half];
  }
  float lane[kWidth];
  store(lane, part[0]);
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return lane[0];
}

// term(sum, at) returns the lane sums with the elements at one offset added; `fill` stands for
// elements past the end and must add nothing.
template <class Term>
inline float reduce(int64_t n, float fill, Term term) {
  Partial sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kParts; ++j) {
      const int64_t at = i + j * kWidth;
      sums.part[j] = term(sums.part[j], [at](const float* x) { return load(x + at); });
    }
  }
  int j = 0;
  for (; i + kWidth <= n; i += kWidth, ++j) {
    sums.part[j] = term(sums.part[j], [=](const float* x) { return load(x + i); });
  }
  if (i < n) {
    sums.part[j] = term(sums.part[j], [=](const float* x) { return load(x + i, n - i, fill); });
  }
  return total(sums);
}

float sum(const float* x, int64_t n) {
  return reduce(n, 0, [=](F s, auto at) { return s + at(x); });
}
float sum_squares(const float* x, int64_t n) {
  return reduce(n, 0, [=](F s, auto at) {
    const F v = at(x);
    return multiply_add(v, v, s);
  });
}
float sum_squared_deviations(const float* x, float mean, int64_t n) {
  return reduce(n, mean, [=](F s, auto at) {
    const F v = at(x) - splat(mean);
    return multiply_add(v, v, s);
  });
}
float dot(const float* a, const float* b, int64_t n) {
  return reduce(n, 0, [=](F s, auto at) { return multiply_add(at(a), at(b), s); });
}

float max(const float* x, float start, int64_t n) {
  F best = splat(start);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) best = maximum(best, load(x + i));
  if (i < n) best = maximum(best, load(x + i, n - i, start));
  for (int j = 0; j < kWidth; ++j) start = best[j] > start ? best[j] : start;
  return start;
}

float exp_sum(float* out, const float* x, float shift, int64_t n) {
  Partial sums = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kParts; ++j) {
      const F e = exponential(load(x + i + j * kWidth) - splat(shift));
      store(out + i + j * kWidth, e);
      sums.part[j] += e;
    }
  }
  int j = 0;
  for (; i + kWidth <= n; i += kWidth, ++j) {
    const F e = exponential(load(x + i) - splat(shift));
    store(out + i, e);
    sums.part[j] += e;
  }
  if (i < n) {
    const F e = exponential(load(x + i, n - i, -__builtin_inff()) - splat(shift));
    store(out + i, e, n - i);
    sums.part[j] += e;
  }
  return total(sums);
}

void tile(int64_t k, const float* a, const float* b, int64_t ldb, float* c, int64_t ldc,
          bool accumulate) {
  F sums[kTileRows][2] = {};
  for (int64_t p = 0; p < k; ++p, a += kTileRows, b += ldb) {
    const F b0 = load(b), b1 = load(b + kWidth);
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) {
      const F v = splat(a[i]);
      sums[i][0] = multiply_add(v, b0, sums[i][0]);
      sums[i][1] = multiply_add(v, b1, sums[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTileRows; ++i, c += ldc) {
    store(c, accumulate ? load(c) + sums[i][0] : sums[i][0]);
    store(c + kWidth, accumulate ? load(c + kWidth) + sums[i][1] : sums[i][1]);
  }
}

#ifdef __AVX2__
// Eight rows of eight: pairs, then quadruples, then halves are exchanged.
inline void transpose_square(float* out, int64_t stride, const float* const rows[8], int64_t at) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + at);
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#endif

void transpose8(float* out, int64_t stride, const float* const rows[8], int64_t n) {
  int64_t p = 0;
#ifdef __AVX2__
  for (; p + 8 <= n; p += 8) transpose_square(out + p * stride, stride, rows, p);
#endif
  for (; p < n; ++p) {
    for (int i = 0; i < 8; ++i) out[p * stride + i] = rows[i][p];
  }
}

constexpr Simd kTable = {
    PLUMB_SIMD_NAME,
    2 * kWidth,
    {widen_row<kF16>, widen_row<kBf16>},
    {narrow_row<kF16>, narrow_row<kBf16>},
    {round_row<kF16>, round_row<kBf16>},
    add,
    mul,
    scale,
    divide,
    {activate<silu>, activate<gelu>, activate<gelu_tanh>, activate<hyperbolic_tangent>},
    sum,
    sum_squares,
    sum_squared_deviations,
    dot,
    max,
    exp_sum,
    score,
    weighted,
    normalised,
    {rotate<kF16>, rotate<kBf16>, rotate<kNone>},
    tile,
    transpose8,
};

}  // namespace

const Simd& PLUMB_SIMD_TABLE() { return kTable; }

}  // namespace plumb::cpu
