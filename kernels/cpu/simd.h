// The vectorised row functions of one instruction set, as a table of function pointers.
//
// simd_kernels.cpp fills one such table per instruction set; everything else on this device is
// compiled for the baseline and reaches the wide units only through the table. All rows are
// contiguous. `out` may be an input. A result never depends on alignment: tails go through the same
// vector code as full vectors, and every sum has kLanes partial sums on every instruction set,
// added up in a fixed order.
#pragma once

#include <cstdint>

namespace plumb::cpu {

inline constexpr int kLanes = 32;    // partial sums of a reduction
inline constexpr int kTileRows = 6;  // rows of the product's micro-kernel
inline constexpr int kMaxTileColumns = 32;
inline constexpr float kMostAngle = 0x1p20f;

// The next multiple. Each file has its own: they are compiled for different processors.
static constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// How the elements of a row are stored.
enum Stored { kF16, kBf16, kF32 };
inline constexpr int kStoredFormats = 3;

// The functions of rows in one storage format. They compute in float32; R() rounds to the format,
// to nearest even, and so does every store to such a row.
struct RowFunctions {
  void (*widen)(float* out, const void* in, int64_t n);
  void (*narrow)(void* out, const float* in, int64_t n);
  void (*round)(float* out, const float* in, int64_t n);  // R()

  void (*add)(void* out, const void* a, const void* b, int64_t n);
  void (*mul)(void* out, const void* a, const void* b, int64_t n);
  void (*div)(void* out, const void* a, const void* b, int64_t n);
  void (*add_scalar)(void* out, const void* x, float value, int64_t n);
  void (*scale)(void* out, const void* x, float factor, int64_t n);
  void (*divide)(void* out, const void* x, float divisor, int64_t n);
  void (*activation[4])(void* out, const void* x, int64_t n);  // index: Activation
  // R(f(gate)) up
  void (*gated_activation[4])(void* out, const void* gate, const void* up, int64_t n);
  // R(tanh(R(x / cap))) cap
  void (*softcap)(void* out, const void* x, float cap, int64_t n);

  float (*sum)(const void* x, int64_t n);
  float (*sum_squares)(const void* x, int64_t n);
  float (*sum_squared_deviations)(const void* x, float mean, int64_t n);
  float (*max)(const void* x, float start, int64_t n);  // NaN elements are passed over
  // out = exp(x - shift); returns the sum of out.
  float (*exp_sum)(float* out, const void* x, float shift, int64_t n);

  // (offset + weight) R(x factor), without that R() for WeightRounding::after (the index).
  void (*rms_normalised[2])(void* out, const void* x, float factor, const void* weight,
                            float offset, int64_t n);
  // (x - mean) factor weight + bias; bias may be null.
  void (*normalised)(void* out, const void* x, float mean, float factor, const void* weight,
                     const void* bias, int64_t n);
  // y1 = R(x1 c1) - R(x2 s1), y2 = R(x2 c2) + R(x1 s2)
  void (*rotate)(void* y1, void* y2, const void* x1, const void* x2, const void* c1, const void* s1,
                 const void* c2, const void* s2, int64_t n);
};

struct Simd {
  const char* name;
  int tile_columns;  // of the micro-kernel: two vectors

  RowFunctions rows[kStoredFormats];  // index: Stored
  const RowFunctions& floats() const { return rows[kF32]; }

  float (*dot)(const float* a, const float* b, int64_t n);
  void (*multiply_add)(float* out, const float* a, const float* b, int64_t n);  // out += a b
  // x = x * factor, or cap * tanh(x * factor / cap) where cap > 0.
  void (*score)(float* x, float factor, float cap, int64_t n);

  // Cosine and sine in float64 (error 2^-36), times factor, rounded once. |angle| <= kMostAngle.
  void (*cos_sin)(float* cos, float* sin, const float* angles, double factor, int64_t n);

  // c[i, j] (+)= sum over p of a[p, i] b[p, j] for kTileRows x tile_columns elements; a is packed
  // [k, kTileRows], b has rows of stride ldb.
  void (*tile)(int64_t k, const float* a, const float* b, int64_t ldb, float* c, int64_t ldc,
               bool accumulate);
  // out[p * stride + i] = rows[i][p] for i < 8, p < n, written in the order of p and 8 floats at a
  // time (with stride < 8 the last 8 - stride floats past the end are overwritten).
  void (*transpose8)(float* out, int64_t stride, const float* const rows[8], int64_t n);
};

// The instruction sets compiled into this binary; the wide ones exist on x86-64 only.
const Simd& simd_baseline();
const Simd& simd_avx2();
const Simd& simd_avx512();

}  // namespace plumb::cpu
