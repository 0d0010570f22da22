// Compiled once per instruction set, without contraction to fused multiply-adds: a product is
// rounded before it is added, as in the plain loop.
#include "kernels/oracle/float64_tile.h"

namespace plumb {
namespace {

#if defined(__AVX512F__)
using Vector = double __attribute__((vector_size(64)));
#else
using Vector = double __attribute__((vector_size(32)));
#endif
constexpr int kWide = sizeof(Vector) / sizeof(double), kVectors = 2, kRows = 4;

inline Vector load(const double* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

inline void store(double* to, Vector v) { __builtin_memcpy(to, &v, sizeof v); }

template <bool magnitudes>
void add(double* out, int64_t out_stride, const double* a, int64_t a_stride, const double* b,
         int64_t depth) {
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) sums[i][j] = load(out + i * out_stride + j * kWide);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + (k * kVectors + j) * kWide);
    for (int i = 0; i < kRows; ++i) {
      const double left = a[i * a_stride + k];
      for (int j = 0; j < kVectors; ++j) {
        Vector term = right[j] * left;
        if (magnitudes) term = term < 0 ? -term : term;
        sums[i][j] += term;
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) store(out + i * out_stride + j * kWide, sums[i][j]);
  }
}

}  // namespace

extern const Float64Tile PLUMB_FLOAT64_TILE = {kRows, kVectors* kWide, add<false>, add<true>};

}  // namespace plumb
