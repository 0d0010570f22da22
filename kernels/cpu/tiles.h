// The micro-kernels of products and what packs their operands, for simd_kernels.cpp only (see
// there).
#pragma once

#include <cstring>

#include "kernels/cpu/vec.h"

namespace plumb::cpu {
namespace {

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
[[gnu::always_inline]] inline void transpose_square(float* out, int64_t stride,
                                                    const float* const rows[8], int64_t at) {
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
    for (int i = 0; i < 8; ++i) {  // pairs of bf16 may be misaligned for a float
      std::memcpy(out + p * stride + i, rows[i] + p, sizeof(float));
    }
  }
}

#ifdef __AVX512BF16__

// The instruction gives no subnormal sums, so vcvtneps2bf16, which takes those for zero, is R().
inline void write_pair_row(uint16_t* out, __mmask32 columns, __m512 first, __m512 second) {
  _mm512_mask_storeu_epi16(out, columns, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// Eight rows of two vectors: sixteen sums in flight hide the latency of the instruction.
void pair_tile(const PairTile& tile) {
  __m512 sums[kPairRows][2] = {};
  if (tile.accumulate) {
#pragma GCC unroll 8
    for (int i = 0; i < kPairRows; ++i) {
      sums[i][0] = _mm512_loadu_ps(tile.sums + i * tile.sums_stride);
      sums[i][1] = _mm512_loadu_ps(tile.sums + i * tile.sums_stride + kWidth);
    }
  }
  const uint32_t *a = tile.a, *b = tile.b;
  for (int64_t p = 0; p < tile.pairs; ++p, a += kPairRows, b += 2 * kWidth) {
    const auto b0 = (__m512bh)_mm512_loadu_si512(b);
    const auto b1 = (__m512bh)_mm512_loadu_si512(b + kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kPairRows; ++i) {
      const auto v = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i]));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], v, b0);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], v, b1);
    }
  }
  if (tile.out) {
    const auto columns = static_cast<__mmask32>((uint64_t{1} << tile.columns) - 1);
#pragma GCC unroll 8
    for (int i = 0; i < kPairRows; ++i) {
      if (i == tile.rows) return;
      write_pair_row(tile.out + i * tile.out_stride, columns, sums[i][0], sums[i][1]);
    }
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPairRows; ++i) {
    _mm512_storeu_ps(tile.sums + i * tile.sums_stride, sums[i][0]);
    _mm512_storeu_ps(tile.sums + i * tile.sums_stride + kWidth, sums[i][1]);
  }
}
constexpr auto kPairTile = pair_tile;

#else
constexpr void (*kPairTile)(const PairTile&) = nullptr;
#endif

}  // namespace
}  // namespace plumb::cpu
