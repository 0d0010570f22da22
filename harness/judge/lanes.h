// Sums of neighbouring elements, eight at a time: term i goes to lane i % 8, and lanes are added in
// one order, so that a compiler may use vector registers of any width for the same bits.
#pragma once

#include <cstddef>

namespace plumb::harness {

struct Lanes {
  static constexpr size_t kCount = 8;
  double sums[kCount] = {};

  // term(0) to term(n - 1), of which the first goes to lane 0.
  template <class Term>
  void add(size_t n, const Term& term) {
    double local[kCount];
    for (size_t k = 0; k < kCount; ++k) local[k] = sums[k];
    size_t i = 0;
    for (; i + kCount <= n; i += kCount) {
      for (size_t k = 0; k < kCount; ++k) local[k] += term(i + k);
    }
    for (size_t k = 0; i < n; ++i, ++k) local[k] += term(i);
    for (size_t k = 0; k < kCount; ++k) sums[k] = local[k];
  }

  double total() const {
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
};

template <class Term>
double lane_sum(size_t n, const Term& term) {
  Lanes lanes;
  lanes.add(n, term);
  return lanes.total();
}

// The largest of term(0) to term(n - 1), at least 0; none of them is NaN.
template <class Term>
double lane_max(size_t n, const Term& term) {
  double largest[Lanes::kCount] = {};
  size_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    for (size_t k = 0; k < Lanes::kCount; ++k) {
      const double x = term(i + k);
      largest[k] = x > largest[k] ? x : largest[k];
    }
  }
  double out = 0;
  for (; i < n; ++i) out = term(i) > out ? term(i) : out;
  for (const double x : largest) out = x > out ? x : out;
  return out;
}

}  // namespace plumb::harness
