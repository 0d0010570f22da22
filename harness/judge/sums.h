// Arithmetic that every statistic shares, safe against zero and NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace plumb::harness {

// Sum of term(i) in chunks of 4096, added in index order: the result depends on nothing but the
// terms. Several chunks at a time, whose additions need not wait for each other.
template <class Term>
double chunked_sum(size_t n, Term term) {
  constexpr size_t kChunk = 4096, kAtOnce = 8;
  double total = 0;
  size_t begin = 0;
  for (; begin + kAtOnce * kChunk <= n; begin += kAtOnce * kChunk) {
    double partial[kAtOnce] = {};
    for (size_t i = 0; i < kChunk; ++i) {
      for (size_t k = 0; k < kAtOnce; ++k) partial[k] += term(begin + k * kChunk + i);
    }
    for (const double sum : partial) total += sum;
  }
  for (; begin < n; begin += kChunk) {
    const size_t end = std::min(begin + kChunk, n);
    double partial = 0;
    for (size_t i = begin; i < end; ++i) partial += term(i);
    total += partial;
  }
  return total;
}

// Sums of term(i) over the groups of a partition (harness/recording/layout.h), each added in index
// order. Where rows have groups of their own, several rows at a time.
template <class Partition, class Term>
void add_groups(std::vector<double>& sums, const Partition& by, Term term) {
  constexpr size_t kAtOnce = 8;
  const size_t rows = by.row_part.size(), columns = by.column_part.size();
  const auto group = [&](size_t row, size_t column) {
    return static_cast<size_t>(by.row_part[row] + by.column_part[column]);
  };
  const auto widest = columns ? *std::max_element(by.column_part.begin(), by.column_part.end()) : 0;
  const auto apart = [&](size_t row) {
    for (size_t k = 1; k < kAtOnce; ++k) {
      if (by.row_part[row + k] - by.row_part[row + k - 1] <= widest) return false;
    }
    return true;
  };
  size_t row = 0;
  for (; row + kAtOnce <= rows && apart(row); row += kAtOnce) {
    for (size_t begin = 0, end = 0; begin < columns; begin = end) {
      double at[kAtOnce];
      for (size_t k = 0; k < kAtOnce; ++k) at[k] = sums[group(row + k, begin)];
      for (end = begin; end < columns && by.column_part[end] == by.column_part[begin]; ++end) {
        for (size_t k = 0; k < kAtOnce; ++k) at[k] += term((row + k) * columns + end);
      }
      for (size_t k = 0; k < kAtOnce; ++k) sums[group(row + k, begin)] = at[k];
    }
  }
  for (; row < rows; ++row) {
    for (size_t c = 0; c < columns; ++c) sums[group(row, c)] += term(row * columns + c);
  }
}

// a / b for b >= 0, with 0/0 = 0 and x/0 = Inf; NaN stays NaN.
inline double quotient(double a, double b) {
  if (b != 0) return a / b;
  return a == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), a) * std::fabs(a);
}

// Whether v replaces the largest value so far: NaN does, and nothing replaces NaN.
inline bool exceeds(double v, double largest) { return !(v <= largest) && !std::isnan(largest); }

}  // namespace plumb::harness
