// The oracle's product: the bits of a plain loop, on any machine and with any number of threads.
#include "kernels/oracle/float64_gemm.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "tests/catch.h"

namespace plumb {
namespace {

using Values = std::vector<double>;

Values random_values(int64_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Values out(static_cast<size_t>(count));
  for (double& value : out) value = normal(engine);
  return out;
}

struct Products {
  Values out, magnitudes;
};

double element(const Float64Gemm& g, int64_t k, int64_t j) {
  const int64_t at = k * g.b_row + j * g.b_column;
  return load(g.b_dtype, static_cast<const char*>(g.b) + at * size_of(g.b_dtype));
}

Products plain_loop(const Float64Gemm& g) {
  Products p{Values(static_cast<size_t>(g.m * g.n)), Values(static_cast<size_t>(g.m * g.n))};
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0, magnitudes = 0;
      for (int64_t k = 0; k < g.k; ++k) {
        const double term = g.a[i * g.k + k] * element(g, k, j);
        sum += term;
        magnitudes += std::fabs(term);
      }
      p.out[static_cast<size_t>(i * g.n + j)] = sum;
      p.magnitudes[static_cast<size_t>(i * g.n + j)] = magnitudes;
    }
  }
  return p;
}

Products tiled(Float64Gemm g, ThreadPool* pool) {
  Products p{Values(static_cast<size_t>(g.m * g.n)), Values(static_cast<size_t>(g.m * g.n))};
  g.out = p.out.data();
  g.magnitudes = p.magnitudes.data();
  float64_gemm(g, pool);
  return p;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

TEST_CASE("a tiled product has the bits of the plain loop, with one thread and with three") {
  ThreadPool three(3);
  for (const int64_t m : {1, 3, 4, 65}) {
    for (const int64_t n : {1, 7, 16, 33}) {
      for (const int64_t k : {0, 1, 255, 257, 700}) {
        const Values a = random_values(m * k, 1), b = random_values(k * n, 2);
        for (const bool by_columns : {false, true}) {
          const Float64Gemm g{
              m,       n,      k, a.data(), b.data(), by_columns ? 1 : n, by_columns ? k : 1,
              nullptr, nullptr};
          INFO(m << " x " << n << " x " << k << (by_columns ? " by columns" : ""));
          const Products expected = plain_loop(g);
          for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &three}) {
            const Products found = tiled(g, pool);
            CHECK(same_bits(found.out, expected.out));
            CHECK(same_bits(found.magnitudes, expected.magnitudes));
          }
        }
      }
    }
  }
}

TEST_CASE("a narrow operand is widened as it is used") {
  constexpr int64_t kRows = 5, kColumns = 21, kInner = 300;
  const Values a = random_values(kRows * kInner, 5), wide = random_values(kInner * kColumns, 6);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<char> b(wide.size() * static_cast<size_t>(size_of(dtype)));
    store_all(dtype, b.data(), kInner * kColumns, wide.data());
    for (const bool by_columns : {false, true}) {
      Float64Gemm g{kRows,
                    kColumns,
                    kInner,
                    a.data(),
                    b.data(),
                    by_columns ? 1 : kColumns,
                    by_columns ? kInner : 1};
      g.b_dtype = dtype;
      INFO(name_of(dtype) << (by_columns ? " by columns" : ""));
      CHECK(same_bits(tiled(g, nullptr).out, plain_loop(g).out));
    }
  }
}

TEST_CASE("a product keeps NaN and infinities to their own rows and columns") {
  constexpr int64_t kSize = 20;
  Values a = random_values(kSize * kSize, 3), b = random_values(kSize * kSize, 4);
  a[5 * kSize + 2] = std::numeric_limits<double>::quiet_NaN();
  b[3 * kSize + 18] = std::numeric_limits<double>::infinity();
  const Float64Gemm g{kSize, kSize, kSize, a.data(), b.data(), kSize, 1, nullptr, nullptr};
  const Products found = tiled(g, nullptr);
  for (int64_t i = 0; i < kSize; ++i) {
    for (int64_t j = 0; j < kSize; ++j) {
      const double y = found.out[static_cast<size_t>(i * kSize + j)];
      CHECK(std::isnan(y) == (i == 5));
      CHECK((i == 5 || std::isinf(y) == (j == 18)));
    }
  }
}

}  // namespace
}  // namespace plumb
