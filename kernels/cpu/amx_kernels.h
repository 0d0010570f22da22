// Products of bf16 matrices on AMX tiles and what packs their operands, for simd_kernels.cpp only
// (see there).
//
// A block of sums is two tiles by two, which takes two tiles of each operand per step: four loads
// hide behind four multiplications of 16 cycles each where they come from the first-level cache.
#pragma once

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kSumsRow = kMatrixSide * sizeof(float);  // bytes of a row of two tiles

inline void load_sums(const float* sums, int64_t stride) {
  const float* below = sums + kTileSide * stride;
  load_tile<0>(sums, 4 * stride);
  load_tile<1>(sums + kTileSide, 4 * stride);
  load_tile<2>(below, 4 * stride);
  load_tile<3>(below + kTileSide, 4 * stride);
}

inline void store_sums(float* sums, int64_t stride) {
  float* below = sums + kTileSide * stride;
  store_tile<0>(sums, 4 * stride);
  store_tile<1>(sums + kTileSide, 4 * stride);
  store_tile<2>(below, 4 * stride);
  store_tile<3>(below + kTileSide, 4 * stride);
}

// Words of two neighbours along the rows, in bf16. Sums of products are never subnormal, so that
// the instruction, which takes those for zero, is R(); with a bias they may be.
inline __m512i pair_words(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a,
                                         0x190009, 0x180008, 0x170007, 0x160006, 0x150005, 0x140004,
                                         0x130003, 0x120002, 0x110001, 0x100000);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
inline __m512i pair_words(F even, F odd, const float* bias) {
  const U low = rounded_to_bf16(short_nan(even + splat(bias[0]))) >> 16;
  const U high = rounded_to_bf16(short_nan(odd + splat(bias[1]))) & 0xffff0000u;
  return (__m512i)(low | high);
}

// Sixteen rows of sixteen words: words, pairs, quadruples and halves are exchanged.
[[gnu::always_inline]] inline void transpose_words(__m512i (&r)[16]) {
  __m512i s[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    s[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    s[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    s[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd);
  }
}

inline __mmask32 first_of_32(int64_t count) {
  return static_cast<__mmask32>((uint64_t{1} << count) - 1);
}

// out[j, i] = R(sums[i, j] + bias[i])
template <bool Bias>
void write_columns(const float* sums, const MatrixTile& tile) {
  const __mmask32 mask = first_of_32(tile.rows);
  for (int64_t first = 0; first < tile.columns; first += kTileSide, sums += kTileSide) {
    __m512i words[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const F even = load(sums + 2 * i * kMatrixSide), odd = load(sums + (2 * i + 1) * kMatrixSide);
      words[i] =
          Bias ? pair_words(even, odd, tile.bias + 2 * i) : pair_words((__m512)even, (__m512)odd);
    }
    transpose_words(words);
    uint16_t* out = tile.out + first * tile.out_stride;
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      if (first + j == tile.columns) return;
      _mm512_mask_storeu_epi16(out + j * tile.out_stride, mask, words[j]);
    }
  }
}

// out[i, j] = R(sums[i, j])
void write_rows(const float* sums, const MatrixTile& tile) {
  const __mmask32 mask = first_of_32(tile.columns);
  for (int64_t i = 0; i < tile.rows; ++i, sums += kMatrixSide) {
    const auto row = _mm512_cvtne2ps_pbh(_mm512_load_ps(sums + kTileSide), _mm512_load_ps(sums));
    _mm512_mask_storeu_epi16(tile.out + i * tile.out_stride, mask, (__m512i)row);
  }
}

void multiply_matrix(const MatrixTile& tile) {
  if (tile.accumulate) {
    load_sums(tile.sums, tile.sums_stride);
  } else {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  }
  const char *a = tile.a, *ahead = tile.ahead[0], *also = tile.ahead[1];
  const int64_t a_stride = tile.a_stride, a_step = tile.a_step, below = kTileSide * a_stride;
  const uint32_t* b = tile.b;
  for (int64_t step = 0; step < tile.steps; ++step) {
    _mm_prefetch(ahead, _MM_HINT_T1);
    _mm_prefetch(also, _MM_HINT_T1);
    load_tile<4>(b, kSumsRow);
    load_tile<6>(a, a_stride);
    multiply_tiles<0, 6, 4>();
    load_tile<5>(b + kTileSide, kSumsRow);
    multiply_tiles<1, 6, 5>();
    load_tile<7>(a + below, a_stride);
    multiply_tiles<2, 7, 4>();
    multiply_tiles<3, 7, 5>();
    a += a_step;
    b += kTileSide * kMatrixSide;
    ahead += kTileBytes;
    also += kTileBytes;
  }
  if (!tile.out) return store_sums(tile.sums, tile.sums_stride);
  alignas(64) float sums[kMatrixSide * kMatrixSide];
  store_sums(sums, kMatrixSide);
  if (!tile.transposed) write_rows(sums, tile);
  else if (tile.bias) write_columns<true>(sums, tile);
  else write_columns<false>(sums, tile);
}

void copy_matrix_row(char* out, const char* row, int64_t elements, int64_t steps) {
  for (; elements >= kMatrixStep; elements -= kMatrixStep, --steps) {
    _mm512_store_si512(out, _mm512_loadu_si512(row));
    out += kMatrixStepBytes;
    row += kTileBytes;
  }
  for (; steps > 0; elements = 0, --steps, out += kMatrixStepBytes) {
    _mm512_store_si512(out, _mm512_maskz_loadu_epi16(first_of_32(elements), row));
  }
}

// unpack works within quarters of a vector, which get the elements that they need first.
void interleave_rows(uint32_t* out, const void* even, const void* odd, int64_t columns) {
  const __mmask32 mask = first_of_32(columns);
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const auto row = [&](const void* from) {
    const __m512i v = from ? _mm512_maskz_loadu_epi16(mask, from) : _mm512_setzero_si512();
    return _mm512_permutexvar_epi64(order, v);
  };
  const __m512i a = row(even), b = row(odd);
  _mm512_store_si512(out, _mm512_unpacklo_epi16(a, b));
  _mm512_store_si512(out + kTileSide, _mm512_unpackhi_epi16(a, b));
}

bool finite_row(const void* row, int64_t n) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  const char* p = static_cast<const char*>(row);
  for (; n > 0; n -= kMatrixStep, p += kTileBytes) {
    const __m512i v = _mm512_maskz_loadu_epi16(first_of_32(n < kMatrixStep ? n : kMatrixStep), p);
    found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
  }
  return found == 0;
}

// The high half is the nearest bf16, so that what is left has at most 16 bits, of which it loses 8.
float split_weights(char* high, char* low, const float* scores, float factor, float shift,
                    int64_t n, int64_t steps) {
  Partial sums = {};
  const auto weigh = [=](F x) {
    return exponential_of_negative(multiply_add(x, splat(factor), splat(-shift)));
  };
  const auto high_of = [](F w) { return (F)(((U)w + 0x8000u) & 0xffff0000u); };
  const auto write = [](char* to, F first, F second) {
    _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
  };
  const auto step = [&](F first, F second) {
    sums.part[0] += first;
    sums.part[1] += second;
    const F a = high_of(first), b = high_of(second);
    write(high, a, b);
    write(low, first - a, second - b);
    high += kMatrixStepBytes;
    low += kMatrixStepBytes;
  };
  for (; n >= kMatrixStep; n -= kMatrixStep, --steps, scores += kMatrixStep) {
    step(weigh(load(scores)), weigh(load(scores + kWidth)));
  }
  for (; steps > 0; --steps, n = 0, scores += kMatrixStep) {
    const auto rest = [&](int64_t at) {  // of the vector there
      const int64_t count = n < at ? 0 : n < at + kWidth ? n - at : kWidth;
      const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
      return (F)_mm512_maskz_mov_ps(mask,
                                    (__m512)weigh((F)_mm512_maskz_loadu_ps(mask, scores + at)));
    };
    step(rest(0), rest(kWidth));
  }
  return total(sums);
}

constexpr MatrixUnit kMatrixFunctions = {begin_tiles,     end_tiles,       multiply_matrix,
                                         copy_matrix_row, interleave_rows, finite_row,
                                         split_weights};
constexpr const MatrixUnit* kMatrixUnit = &kMatrixFunctions;

}  // namespace
}  // namespace plumb::cpu
