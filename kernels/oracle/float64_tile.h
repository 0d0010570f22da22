// The register tile of float64_gemm, compiled once per instruction set (float64_tile.cpp).
#pragma once

#include <cstdint>

namespace plumb {

struct Float64Tile {
  int64_t rows, columns;  // of a tile
  // out[i, j] += sum over k of a[i, k] b[k, j], in the order of k: a [rows, depth] and out
  // [rows, columns] with strides, b packed [depth, columns]. `magnitudes`: of |a b|.
  void (*add)(double* out, int64_t out_stride, const double* a, int64_t a_stride, const double* b,
              int64_t depth);
  void (*add_magnitudes)(double* out, int64_t out_stride, const double* a, int64_t a_stride,
                         const double* b, int64_t depth);
};

extern const Float64Tile float64_tile_baseline, float64_tile_avx2, float64_tile_avx512;

}  // namespace plumb
