#include "kernels/oracle/float64_gemm.h"

#include <algorithm>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/oracle/float64_tile.h"

namespace plumb {
namespace {

constexpr int64_t kDepth = 256;  // of k at a time: a packed strip of b stays in the first cache
constexpr int64_t kLine = kDepth + 8;  // lines that follow each other share no place in the cache
constexpr int64_t kRowsAtOnce = 256;   // of a, that a strip is used for before the next is packed
constexpr double kNanosecondsPerProduct = 0.1;

const Float64Tile& widest_tile() {
#ifdef PLUMB_X86_SIMD
  if (__builtin_cpu_supports("avx512f")) return float64_tile_avx512;
  if (__builtin_cpu_supports("avx2")) return float64_tile_avx2;
#endif
  return float64_tile_baseline;
}

// One strip of columns and one block of rows of a product.
class Strip {
 public:
  Strip(const Float64Gemm& gemm, const Float64Tile& tile)
      : gemm_(gemm),
        tile_(tile),
        packed_(static_cast<size_t>(kDepth * tile.columns)),
        lines_(static_cast<size_t>(kLine * tile.columns)),
        rows_(static_cast<size_t>(kDepth * tile.rows)),
        sums_(static_cast<size_t>(tile.rows * tile.columns)) {}

  void compute(int64_t row0, int64_t rows, int64_t column0) {
    const int64_t columns = std::min(tile_.columns, gemm_.n - column0);
    for (double* to : {gemm_.out, gemm_.magnitudes}) {
      for (int64_t row = row0; to && row < row0 + rows; ++row) {
        std::fill_n(to + row * gemm_.n + column0, columns, 0.0);
      }
    }
    for (int64_t k0 = 0; k0 < gemm_.k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, gemm_.k - k0);
      pack(k0, depth, column0, columns);
      for (int64_t i = 0; i < rows; i += tile_.rows) {
        const int64_t row = row0 + i, live = std::min(tile_.rows, rows - i);
        add(gemm_.out, tile_.add, row, live, column0, columns, k0, depth);
        if (gemm_.magnitudes) {
          add(gemm_.magnitudes, tile_.add_magnitudes, row, live, column0, columns, k0, depth);
        }
      }
    }
  }

 private:
  // b's columns as [depth, tile.columns]; zeros beyond the last.
  void pack(int64_t k0, int64_t depth, int64_t column0, int64_t columns) {
    const int64_t size = size_of(gemm_.b_dtype), width = tile_.columns;
    const char* from =
        static_cast<const char*>(gemm_.b) + (k0 * gemm_.b_row + column0 * gemm_.b_column) * size;
    if (gemm_.b_column == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        double* to = packed_.data() + k * width;
        load_all(gemm_.b_dtype, from + k * gemm_.b_row * size, columns, to);
        std::fill(to + columns, to + width, 0.0);
      }
      return;
    }
    for (int64_t j = 0; j < columns; ++j) {
      load_all(gemm_.b_dtype, from + j * gemm_.b_column * size, depth, lines_.data() + j * kLine);
    }
    for (int64_t k = 0; k < depth; ++k) {
      double* to = packed_.data() + k * width;
      for (int64_t j = 0; j < width; ++j) to[j] = lines_[static_cast<size_t>(j * kLine + k)];
    }
  }

  // At the edges through a full tile of its own.
  void add(double* to, decltype(Float64Tile::add) tile_add, int64_t row, int64_t live,
           int64_t column0, int64_t columns, int64_t k0, int64_t depth) {
    double* out = to + row * gemm_.n + column0;
    const double* a = gemm_.a + row * gemm_.k + k0;
    if (live == tile_.rows && columns == tile_.columns) {
      return tile_add(out, gemm_.n, a, gemm_.k, packed_.data(), depth);
    }
    std::fill(rows_.begin(), rows_.end(), 0.0);
    for (int64_t i = 0; i < live; ++i) {
      std::copy_n(a + i * gemm_.k, depth, rows_.begin() + i * kDepth);
      std::copy_n(out + i * gemm_.n, columns, sums_.begin() + i * tile_.columns);
    }
    tile_add(sums_.data(), tile_.columns, rows_.data(), kDepth, packed_.data(), depth);
    for (int64_t i = 0; i < live; ++i) {
      std::copy_n(sums_.begin() + i * tile_.columns, columns, out + i * gemm_.n);
    }
  }

  const Float64Gemm& gemm_;
  const Float64Tile& tile_;
  std::vector<double> packed_, lines_, rows_, sums_;  // lines_: columns beyond the last stay zero
};

}  // namespace

void float64_gemm(const Float64Gemm& gemm, ThreadPool* pool) {
  const Float64Tile& tile = widest_tile();
  const int64_t strips = (gemm.n + tile.columns - 1) / tile.columns;
  const int64_t blocks = (gemm.m + kRowsAtOnce - 1) / kRowsAtOnce;
  const auto unit = [&](int64_t i, int) {
    const int64_t row0 = i % blocks * kRowsAtOnce;
    Strip(gemm, tile)
        .compute(row0, std::min(kRowsAtOnce, gemm.m - row0), i / blocks * tile.columns);
  };
  const double cost = kNanosecondsPerProduct *
                      static_cast<double>(std::min(kRowsAtOnce, gemm.m) * gemm.k * tile.columns);
  if (pool) return pool->for_each(strips * blocks, cost, unit);
  for (int64_t i = 0; i < strips * blocks; ++i) unit(i, 0);
}

}  // namespace plumb
