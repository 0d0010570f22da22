// One vector of floats, for simd_kernels.cpp only (see there): GCC vector extensions and a few
// intrinsics where the compiler does not find the instruction by itself. No include but
// freestanding ones.
#pragma once

#include <stdint.h>
#ifdef __AVX2__
#include <immintrin.h>  // functions that are always inlined: nothing of them is left for the linker
#endif

#include "kernels/cpu/simd.h"

namespace plumb::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float F __attribute__((vector_size(4 * kWidth)));
typedef int32_t I __attribute__((vector_size(4 * kWidth)));
typedef uint32_t U __attribute__((vector_size(4 * kWidth)));
typedef uint16_t H __attribute__((vector_size(2 * kWidth)));
typedef uint8_t B __attribute__((vector_size(kWidth)));

inline F splat(float x) {
#if defined(__AVX512F__)
  return (F)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (F)_mm256_set1_ps(x);
#else
  return F{x, x, x, x};
#endif
}

inline F load(const float* p) {
  F v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline H load(const uint16_t* p) {
  H v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
inline void store(uint16_t* p, H v) { __builtin_memcpy(p, &v, sizeof v); }

// Fewer than Size bytes in pieces of 16, 8, 4 and 2: faster than a loop or a call for the ends of
// rows.
template <int Size>
inline void copy_piece(char*& to, const char*& from, int64_t bytes) {
  if constexpr (Size >= 2) {
    if (bytes & Size) {
      __builtin_memcpy(to, from, Size);
      to += Size;
      from += Size;
    }
    copy_piece<Size / 2>(to, from, bytes);
  }
}
template <int Size>
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  copy_piece<Size / 2>(out, in, bytes);
}

// The first `count` < kWidth elements, the others `fill`. Lanes that are masked off are not
// touched.
#if defined(__AVX512F__)
inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline F load(const float* p, int64_t count, float fill) {
  return (F)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(count), p);
}
inline void store(float* p, F v, int64_t count) {
  _mm512_mask_storeu_ps(p, first(count), (__m512)v);
}
inline H load(const uint16_t* p, int64_t count) {
  return (H)_mm256_maskz_loadu_epi16(first(count), p);
}
inline void store(uint16_t* p, H v, int64_t count) {
  _mm256_mask_storeu_epi16(p, first(count), (__m256i)v);
}
#elif defined(__AVX2__)
inline __m256i first(int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
inline F load(const float* p, int64_t count, float fill) {
  const __m256i mask = first(count);
  return (F)_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask), (__m256)mask);
}
inline void store(float* p, F v, int64_t count) { _mm256_maskstore_ps(p, first(count), (__m256)v); }
#else
inline F load(const float* p, int64_t count, float fill) {
  F v = splat(fill);
  copy_bytes<sizeof v>(&v, p, count * 4);
  return v;
}
inline void store(float* p, F v, int64_t count) { copy_bytes<sizeof v>(p, &v, count * 4); }
#endif
#if !defined(__AVX512F__)
inline H load(const uint16_t* p, int64_t count) {
  H v = {};
  copy_bytes<sizeof v>(&v, p, count * 2);
  return v;
}
inline void store(uint16_t* p, H v, int64_t count) { copy_bytes<sizeof v>(p, &v, count * 2); }
#endif

// a * b + c with one rounding where the hardware has it: for sums, never across an R().
inline F multiply_add(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline F absolute(F x) { return (F)((U)x & 0x7fffffffu); }
inline F negative(F x) { return (F)((U)x | 0x80000000u); }  // -|x|
inline F with_sign_of(F magnitude, F sign) { return (F)((U)magnitude | ((U)sign & 0x80000000u)); }
inline bool any_below(F x, float least) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(least), _CMP_LT_OQ);
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)(x < splat(least)));
#else
  for (int i = 0; i < kWidth; ++i) {
    if (x[i] < least) return true;
  }
  return false;
#endif
}
// The next integer, the even one of two: a sum with 2^23 has no more bits.
inline F nearest(F x) {
  const F magnitude = absolute(x), integer = (magnitude + splat(0x1p23f)) - splat(0x1p23f);
  return magnitude < splat(0x1p23f) ? with_sign_of(integer, x) : x;
}
inline F floor(F x) {
  const F near = nearest(x);
  return near > x ? near - splat(1.0f) : near;
}
// x > best ? x : best, so that NaN in `x` is passed over; one instruction, which the compiler does
// not find, because it keeps exceptions of comparisons.
inline F maximum(F best, F x) {
#if defined(__AVX512F__)
  return (F)_mm512_max_ps((__m512)x, (__m512)best);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)x, (__m256)best);
#else
  return x > best ? x : best;
#endif
}
inline F square_root(F x) {
#if defined(__AVX512F__)
  return (F)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (F)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < kWidth; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// x > most ? most : x: NaN stays.
inline F at_most(float most, F x) {
#if defined(__AVX512F__)
  return (F)_mm512_min_ps((__m512)splat(most), (__m512)x);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)splat(most), (__m256)x);
#else
  return x > splat(most) ? splat(most) : x;
#endif
}

inline U widen_bits(H h) {
#if defined(__AVX512F__)
  return (U)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
  return (U)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, U);
#endif
}
// Of elements below 2^16.
inline H narrow_bits(U bits) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m128i high = _mm256_extracti128_si256((__m256i)bits, 1);
  return (H)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)bits), high);
#else
  return __builtin_convertvector(bits, H);
#endif
}

inline F widen_bf16(H h) { return (F)(widen_bits(h) << 16); }

// The upper half is what is left of x, rounded to nearest even; the lower half is arbitrary. A NaN
// must have zeros there, as all have that arithmetic makes of bf16 operands: it then stays as it
// is.
inline U rounded_to_bf16(F x) {
  const U bits = (U)x;
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}
// x with the lower half of NaNs zero.
inline F short_nan(F x) {
#if defined(__AVX512F__)
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_set1_epi32(0x400000), upper = _mm512_set1_epi32(-0x10000);
  const __m512i bits = _mm512_or_si512((__m512i)x, quiet);
  return (F)_mm512_mask_and_epi32((__m512i)x, nan, bits, upper);
#else
  return x != x ? (F)(((U)x | 0x400000u) & 0xffff0000u) : x;
#endif
}
inline F round_bf16(F x) { return (F)(rounded_to_bf16(x) & 0xffff0000u); }
inline H narrow_bf16(F x) {
#if defined(__AVX512F__)
  const __m512i odd =
      _mm512_set_epi32(0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001,
                       0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
  return (H)_mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, (__m512i)rounded_to_bf16(x)));
#else
  return narrow_bits(rounded_to_bf16(x) >> 16);
#endif
}

inline F widen_f16(H h) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps((__m128i)h);
#else
  const U bits = widen_bits(h);
  const U magnitude = bits & 0x7fffu;
  // A multiplication moves the exponent from bias 15 to 127 and normalises subnormals exactly.
  const F finite = (F)(magnitude << 13) * splat(0x1p112f);
  const U special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? U{} + 0x400000u : U{});
  return (F)((magnitude >= 0x7c00u ? special : (U)finite) | ((bits & 0x8000u) << 16));
#endif
}

inline H narrow_f16(F x) {
#if defined(__AVX512F__)
  return (H)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  return (H)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
  const U bits = (U)x;
  const U magnitude = bits & 0x7fffffffu;
  const U normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14 adding 0.5 puts the last bit of f16 into the last bit of the sum.
  const U subnormal = (U)((F)magnitude + splat(0.5f)) - 0x3f000000u;
  const U infinite = U{} + 0x7c00u;
  const U nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  const U finite = magnitude < 0x38800000u ? subnormal : normal;
  const U special = magnitude > 0x7f800000u ? nan : infinite;
  const U result = magnitude >= 0x477ff000u ? special : finite;  // from there on rounds to 2^16
  return narrow_bits(result | ((bits >> 16) & 0x8000u));
#endif
}

// Elements of rows as they are stored.

template <Stored S>
inline F widen(H h) {
  return S == kF16 ? widen_f16(h) : widen_bf16(h);
}
template <Stored S>
inline H narrow(F x) {
  return S == kF16 ? narrow_f16(x) : narrow_bf16(x);
}

// Any float32 as R() and write() want it.
template <Stored S>
inline F roundable(F x) {
  return S == kBf16 ? short_nan(x) : x;
}

// R()
template <Stored S>
inline F rounded(F x) {
  if constexpr (S == kF32) {
    return x;
  } else if constexpr (S == kBf16) {
    return round_bf16(x);
  } else {
    return widen_f16(narrow_f16(x));
  }
}

// Elements [at, at + kWidth) of a row.
template <Stored S>
inline F read(const void* row, int64_t at) {
  if constexpr (S == kF32) return load(static_cast<const float*>(row) + at);
  else return widen<S>(load(static_cast<const uint16_t*>(row) + at));
}
template <Stored S>
inline void write(void* row, int64_t at, F v) {
  if constexpr (S == kF32) store(static_cast<float*>(row) + at, v);
  else store(static_cast<uint16_t*>(row) + at, narrow<S>(v));
}

// Elements [at, at + count), count < kWidth, the others `fill`.
template <Stored S>
inline F read(const void* row, int64_t at, int64_t count, float fill) {
  if constexpr (S == kF32) {
    return load(static_cast<const float*>(row) + at, count, fill);
  } else {
    constexpr int32_t index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    I lanes;
    __builtin_memcpy(&lanes, index, sizeof lanes);
    const F v = widen<S>(load(static_cast<const uint16_t*>(row) + at, count));
    return lanes < static_cast<int32_t>(count) ? v : splat(fill);
  }
}
template <Stored S>
inline void write(void* row, int64_t at, F v, int64_t count) {
  if constexpr (S == kF32) store(static_cast<float*>(row) + at, v, count);
  else store(static_cast<uint16_t*>(row) + at, narrow<S>(v), count);
}

// Elements [at, at + count), count <= kWidth, of a row of bool, as 1 and 0; the others are 0.
inline F read_bools(const void* row, int64_t at, int64_t count) {
  B flags = {};
  const uint8_t* from = static_cast<const uint8_t*>(row) + at;
  if (count == kWidth) __builtin_memcpy(&flags, from, sizeof flags);
  for (int64_t i = 0; count < kWidth && i < count; ++i) flags[i] = from[i];
  return __builtin_convertvector(__builtin_convertvector(flags, I), F);
}

}  // namespace
}  // namespace plumb::cpu
