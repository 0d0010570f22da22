// Arithmetic that every statistic shares, safe against zero and NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/shared_loop.h"

namespace plumb::harness {

// The largest that a column adds to its row's first group.
template <class Partition>
int64_t widest_column_part(const Partition& by) {
  const auto& parts = by.column_part;
  return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

// First rows of parts that share no group, and the number of rows: no row of a part has a group of
// a row before it. (Tokens of a batch do: the next entry begins with the groups of the first
// again.)
template <class Partition>
std::vector<size_t> row_borders(const Partition& by) {
  const auto& parts = by.row_part;
  std::vector<int64_t> first_behind(parts);  // the smallest part of this row and all behind it
  for (size_t row = parts.size(); row-- > 1;) {
    first_behind[row - 1] = std::min(first_behind[row - 1], first_behind[row]);
  }
  const int64_t widest = widest_column_part(by);
  std::vector<size_t> out{0};
  int64_t last = -1;  // the largest group of the rows so far
  for (size_t row = 0; row < parts.size(); ++row) {
    if (row > 0 && first_behind[row] > last) out.push_back(row);
    last = std::max(last, parts[row] + widest);
  }
  out.push_back(parts.size());
  return out;
}

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

// Whether all rows have the same groups, and each column one of its own.
template <class Partition>
bool is_by_column(const Partition& by) {
  const auto &rows = by.row_part, &columns = by.column_part;
  return std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) == rows.end() &&
         std::adjacent_find(columns.begin(), columns.end(), std::greater_equal<>()) ==
             columns.end();
}

// Rows and columns of an output.
struct Rectangle {
  size_t row, rows_end, column, columns_end;
};

// add_groups() of some rows and columns.
template <class Number, class Partition, class Term>
void add_groups_of(std::vector<Number>& sums, const Partition& by, const Rectangle& part,
                   Term term) {
  constexpr size_t kAtOnce = 8;
  const size_t columns = by.column_part.size();
  const auto group = [&](size_t row, size_t column) {
    return static_cast<size_t>(by.row_part[row] + by.column_part[column]);
  };
  const auto apart = [&, widest = widest_column_part(by)](size_t row) {
    for (size_t k = 1; k < kAtOnce; ++k) {
      if (by.row_part[row + k] - by.row_part[row + k - 1] <= widest) return false;
    }
    return true;
  };
  size_t row = part.row;
  for (; row + kAtOnce <= part.rows_end && apart(row); row += kAtOnce) {
    for (size_t begin = part.column, end = begin; begin < part.columns_end; begin = end) {
      Number at[kAtOnce];
      for (size_t k = 0; k < kAtOnce; ++k) at[k] = sums[group(row + k, begin)];
      for (; end < part.columns_end && by.column_part[end] == by.column_part[begin]; ++end) {
        for (size_t k = 0; k < kAtOnce; ++k) at[k] += term((row + k) * columns + end);
      }
      for (size_t k = 0; k < kAtOnce; ++k) sums[group(row + k, begin)] = at[k];
    }
  }
  for (; row < part.rows_end; ++row) {
    for (size_t c = part.column; c < part.columns_end; ++c) {
      sums[group(row, c)] += term(row * columns + c);
    }
  }
}

// Sums of term(i) over the groups of a partition (harness/recording/layout.h), each added in index
// order. Where rows have groups of their own, several rows at a time.
template <class Number, class Partition, class Term>
void add_groups(std::vector<Number>& sums, const Partition& by, Term term) {
  const size_t rows = by.row_part.size(), columns = by.column_part.size();
  if (rows == 0 || columns == 0) return;
  if (is_by_column(by)) {
    const LoopParts parts(columns, 1, rows * columns);
    for_parts(parts, [&](size_t begin, size_t end, size_t) {
      add_groups_of(sums, by, {0, rows, begin, end}, term);
    });
    return;
  }
  const std::vector<size_t> borders = row_borders(by);
  const LoopParts parts(borders.size() - 1, 1, rows * columns);
  for_parts(parts, [&](size_t begin, size_t end, size_t) {
    add_groups_of(sums, by, {borders[begin], borders[end], 0, columns}, term);
  });
}

// a / b for b >= 0, with 0/0 = 0 and x/0 = Inf; NaN stays NaN.
inline double quotient(double a, double b) {
  if (b != 0) return a / b;
  return a == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), a) * std::fabs(a);
}

// Whether v replaces the largest value so far: NaN does, and nothing replaces NaN.
inline bool exceeds(double v, double largest) { return !(v <= largest) && !std::isnan(largest); }

}  // namespace plumb::harness
