// Arithmetic that every statistic shares, safe against zero and NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/core/shared_loop.h"

namespace plumb::harness {

// Sum of term(i) in chunks of 4096, added in index order: the result depends on nothing but the
// terms. Several chunks at a time, whose additions need not wait for each other.
template <class Term>
double chunked_sum(size_t n, Term term) {
  constexpr size_t kChunk = 4096, kAtOnce = 8;
  std::vector<double> partial((n + kChunk - 1) / kChunk, 0);
  for_parts(LoopParts(n, kAtOnce * kChunk, n), [&](size_t begin, size_t end, size_t) {
    for (; begin + kAtOnce * kChunk <= end; begin += kAtOnce * kChunk) {
      double sums[kAtOnce] = {};
      for (size_t i = 0; i < kChunk; ++i) {
        for (size_t k = 0; k < kAtOnce; ++k) sums[k] += term(begin + k * kChunk + i);
      }
      std::copy_n(sums, kAtOnce, &partial[begin / kChunk]);
    }
    for (size_t i = begin; i < end; ++i) partial[i / kChunk] += term(i);
  });
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

// a / b for b >= 0, with 0/0 = 0 and x/0 = Inf; NaN stays NaN.
inline double quotient(double a, double b) {
  if (b != 0) return a / b;
  return a == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), a) * std::fabs(a);
}

// Whether v replaces the largest value so far: NaN does, and nothing replaces NaN.
inline bool exceeds(double v, double largest) { return !(v <= largest) && !std::isnan(largest); }

}  // namespace plumb::harness
