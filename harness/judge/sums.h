// Arithmetic that every statistic shares, safe against zero and NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace plumb::harness {

// Sum of term(i) in chunks of 4096, added in index order: the result depends on nothing but the
// terms.
template <class Term>
double chunked_sum(size_t n, Term term) {
  constexpr size_t kChunk = 4096;
  double total = 0;
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t end = std::min(begin + kChunk, n);
    double partial = 0;
    for (size_t i = begin; i < end; ++i) partial += term(i);
    total += partial;
  }
  return total;
}

// a / b for b >= 0, with 0/0 = 0 and x/0 = Inf; NaN stays NaN.
inline double quotient(double a, double b) {
  if (b != 0) return a / b;
  return a == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), a) * std::fabs(a);
}

// Whether v replaces the largest value so far: NaN does, and nothing replaces NaN.
inline bool exceeds(double v, double largest) { return !(v <= largest) && !std::isnan(largest); }

}  // namespace plumb::harness
