// The vectorised row functions of one instruction set, as a table of function pointers.
//
// simd_kernels.cpp fills one such table per instruction set; everything else on this device is
// compiled for the baseline and reaches the wide units only through the table. All rows are
// contiguous. `out` may be an input. A result never depends on alignment: tails go through the same
// vector code as full vectors, and every sum has kLanes partial sums on every instruction set,
// added up in a fixed order.
#pragma once

#include <cstdint>

#include "kernels/ops/reductions.h"

namespace plumb::cpu {

inline constexpr int kLanes = 32;    // partial sums of a reduction
inline constexpr int kTileRows = 6;  // rows of the product's micro-kernel
inline constexpr int kPairRows = 8;  // rows of the micro-kernel of bf16 pairs
inline constexpr int kGemvRows = 4;  // rows that dots() multiplies at once
inline constexpr int kMaxTileColumns = 32;
inline constexpr int kMatrixSide = 32;  // rows and columns of a block of sums of the matrix unit
inline constexpr int kMatrixStep = 32;  // elements of each row that it multiplies at once
inline constexpr int kMatrixStepBytes = kMatrixSide * kMatrixStep * 2;  // of packed rows
inline constexpr float kMostAngle = 0x1p20f;

// The next multiple. Each file has its own: they are compiled for different processors.
static constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// How the elements of a row are stored.
enum Stored { kF16, kBf16, kF32 };
inline constexpr int kStoredFormats = 3;

// A formula of rows. Inputs and numbers that it does not have are not read.
using MapRow = void (*)(void* out, const void* a, const void* b, const void* c, float number,
                        float shift, int64_t n);

// A reduction of rows of float32 (kernels/ops/reductions.h): a state is a value and, as floats or
// as the bits of int32, what comes with it.
struct ReductionRow {
  float start;
  // n elements, the first being the index-th: element i into state i % kLanes, or into state i.
  void (*row)(float* values, float* beside, const float* x, int64_t n, int32_t index);
  void (*columns)(float* values, float* beside, const float* x, int64_t n, int32_t index);
  // The first n states with others; they get what is combined.
  void (*combine)(float* values, float* beside, const float* others, const float* beside_others,
                  int64_t n);
  void (*finish)(float* values, const float* beside, float count, int64_t n);
};

// The functions of rows in one storage format. They compute in float32; R() rounds to the format,
// to nearest even, and so does every store to such a row.
struct RowFunctions {
  void (*widen)(float* out, const void* in, int64_t n);
  void (*narrow)(void* out, const float* in, int64_t n);
  void (*narrow_quotient)(void* out, const float* in, float divisor, int64_t n);
  void (*round)(float* out, const float* in, int64_t n);  // R()

  MapRow map[kFormulas];  // index: Formula
  void apply(Formula f, void* out, const void* a, const void* b, int64_t n,
             float number = 0) const {
    map[static_cast<int>(f)](out, a, b, nullptr, number, 0, n);
  }
  void add(void* out, const void* a, const void* b, int64_t n) const {
    apply(Formula::add, out, a, b, n);
  }
  void mul(void* out, const void* a, const void* b, int64_t n) const {
    apply(Formula::mul, out, a, b, n);
  }
  void scale(void* out, const void* x, float factor, int64_t n) const {
    apply(Formula::multiply, out, x, nullptr, n, factor);
  }
  void divide(void* out, const void* x, float divisor, int64_t n) const {
    apply(Formula::divide, out, x, nullptr, n, divisor);
  }

  float (*sum)(const void* x, int64_t n);
  float (*sum_squares)(const void* x, int64_t n);
  float (*sum_squared_deviations)(const void* x, float mean, int64_t n);
  float (*max)(const void* x, float start, int64_t n);  // NaN elements are passed over
  // sums[i] = sum over p of a[i lda + p] x[p] for i < index + 1.
  void (*dots[kGemvRows])(float* sums, const float* a, int64_t lda, const void* x, int64_t n);
  // out = exp(x - shift); returns the sum of out.
  float (*exp_sum)(float* out, const void* x, float shift, int64_t n);
  // A whole softmax in registers, of at most a vector: tile_columns / 2 elements.
  void (*softmax_vector)(void* out, const void* x, int64_t n);

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

// A tile of a product of bf16 pairs: kPairRows x tile_columns float32 sums over p of a[p, i] b[p,
// j], whose elements are the products' pairs of p: words of two bf16, for even and odd k.
struct PairTile {
  int64_t pairs;
  const uint32_t* a;  // [pairs, kPairRows]
  const uint32_t* b;  // [pairs, tile_columns]
  float* sums;        // rows of stride sums_stride; not written where there is `out`
  int64_t sums_stride;
  bool accumulate;  // add to the sums in memory
  uint16_t* out;    // null, or where R(sums) go in bf16, rows of stride out_stride
  int64_t out_stride;
  int64_t rows, columns;  // of out; sums are whole tiles
};

// A block of a product of bf16 on a matrix unit: kMatrixSide x kMatrixSide float32 sums over p of
// a[i, p] b[p, j], in steps of kMatrixStep elements.
struct MatrixTile {
  int64_t steps;
  const char* a;             // rows: element [i, p] at i a_stride + p / kMatrixStep a_step
  int64_t a_stride, a_step;  // in bytes
  const uint32_t* b;  // [steps * kMatrixStep / 2, kMatrixSide] words of two neighbours along p
  float* sums;        // rows of stride sums_stride; not written where there is `out`
  int64_t sums_stride;
  bool accumulate;  // add to the sums in memory
  uint16_t* out;    // null, or where R(sums) go in bf16, rows of stride out_stride
  int64_t out_stride;
  int64_t rows, columns;  // of the sums that go there
  bool transposed;        // out[j, i] is written, not out[i, j]
  const float* bias;      // null, or with `transposed` what is added to each of the 32 rows
  const char* ahead[2];   // memory that is soon needed: a cache line a step; any address will do
};

// What a processor with a matrix unit has for it. Subnormal operands and sums count as zero.
struct MatrixUnit {
  // Each thread calls begin() before it multiplies and end() afterwards.
  void (*begin)();
  void (*end)();
  void (*multiply)(const MatrixTile&);
  // A row of bf16 for `a` packed as [steps, kMatrixSide, kMatrixStep]; zeros behind its elements.
  void (*copy_row)(char* out, const char* row, int64_t elements, int64_t steps);
  // A row of `b` from two rows of up to kMatrixSide bf16; zeros behind them and for a null row.
  void (*interleave)(uint32_t* out, const void* even, const void* odd, int64_t columns);
  bool (*finite)(const void* row, int64_t n);
  // Weights exp(scores factor - shift) <= 1, each the sum of two bf16: rows of `a` as copy_row
  // makes them. Returns the weights' sum.
  float (*weigh)(char* high, char* low, const float* scores, float factor, float shift, int64_t n,
                 int64_t steps);
};

struct Simd {
  const char* name;
  int tile_columns;  // of the micro-kernel: two vectors

  RowFunctions rows[kStoredFormats];  // index: Stored
  const RowFunctions& floats() const { return rows[kF32]; }
  MapRow map_bools[kFormulas];  // of inputs of bool; null where a formula has none
  ReductionRow reductions[kReductions];

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
  // Null where the processor multiplies no pairs. Subnormal operands and sums count as zero.
  void (*pair_tile)(const PairTile&);
  // out[p * stride + i] = rows[i][p] for i < 8, p < n, written in the order of p and 8 floats at a
  // time (with stride < 8 the last 8 - stride floats past the end are overwritten).
  void (*transpose8)(float* out, int64_t stride, const float* const rows[8], int64_t n);
  const MatrixUnit* matrix;  // null where the processor has none
};

// The instruction sets compiled into this binary; the wide ones exist on x86-64 only.
const Simd& simd_baseline();
const Simd& simd_avx2();
const Simd& simd_avx512();
const Simd& simd_avx512_bf16();
const Simd& simd_amx_bf16();

}  // namespace plumb::cpu
