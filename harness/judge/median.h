// The middle one of many values, without sorting them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/shared_loop.h"

namespace plumb::harness {

// The range below the largest value in 256 parts, eight per power of two; the last one has the
// rest. The bits of doubles without a sign are in their order.
inline constexpr size_t kMedianParts = 256;

inline size_t median_part(double value, double largest) {
  const auto steps = [](double x) { return std::bit_cast<uint64_t>(x) >> 49; };
  return std::min<size_t>(steps(largest) - steps(value), kMedianParts - 1);
}

// The value with as many below it as above, the upper one of two, of value(i) for i in [0, n): none
// negative; NaN is left out. 0 for none.
template <class Value>
double upper_median(size_t n, const Value& value) {
  using Counts = std::array<size_t, kMedianParts>;
  const auto largest_of = [&](size_t begin, size_t end) {
    double out = 0;
    for (size_t i = begin; i < end; ++i) {
      const double x = value(i);
      out = x > out ? x : out;  // NaN is not
    }
    return out;
  };
  const std::vector<double> maxima = shared_parts(n, largest_of);
  const double largest = maxima.empty() ? 0 : *std::max_element(maxima.begin(), maxima.end());
  const auto counts_of = [&](size_t begin, size_t end) {
    Counts out{};
    for (size_t i = begin; i < end; ++i) {
      if (const double x = value(i); !std::isnan(x)) ++out[median_part(x, largest)];
    }
    return out;
  };
  Counts counts{};
  size_t total = 0;
  for (const Counts& some : shared_parts(n, counts_of)) {
    for (size_t part = 0; part < kMedianParts; ++part) {
      counts[part] += some[part];
      total += some[part];
    }
  }
  if (total == 0) return 0;
  size_t part = 0, above = 0;
  while (total - above - counts[part] > total / 2) above += counts[part++];
  const auto values_of = [&](size_t begin, size_t end) {
    std::vector<double> out;
    for (size_t i = begin; i < end; ++i) {
      const double x = value(i);
      if (!std::isnan(x) && median_part(x, largest) == part) out.push_back(x);
    }
    return out;
  };
  std::vector<double> values;
  for (const auto& some : shared_parts(n, values_of)) {
    values.insert(values.end(), some.begin(), some.end());
  }
  const size_t below = total - above - counts[part];
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(total / 2 - below);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace plumb::harness
