// Histograms of errors whose bins are powers of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb::harness {

// Octaves of z: bin 0 holds z < 2^-4, bin b holds [2^(b-5), 2^(b-4)) to 2^20, the last one the
// rest, infinity and NaN.
inline constexpr int kOctaves = 26;
inline constexpr int kLowestOctave = -4;
inline int octave_of(double z) {
  const auto exponent = static_cast<int>((std::bit_cast<uint64_t>(z) >> 52) & 0x7ff) - 1023;
  return std::clamp(exponent - kLowestOctave + 1, 0, kOctaves - 1);
}
// Upper edge of the bin that holds the quantile p of the counted values; 0 for none.
double octave_quantile(const std::vector<int64_t>& octaves, double p);

// Bins of a distance in units in the last place: 0, 1, 2, 3-4, 5-8, ..., > 2^20 (and NaN against a
// number).
inline constexpr int kUlpBins = 23;
int ulp_bin(int64_t distance);

// How many values of a floating dtype are between a and b, which are values of it; -0 equals +0 and
// NaN equals NaN. For integers |a - b|. Saturates at 2^62.
int64_t ulp_distance(DType dtype, double a, double b);

// round_to() of kernels/core/dtype.h, faster for normal results.
double round_quickly(DType dtype, double x);
// The same of x[0] to x[n - 1].
void round_all(DType dtype, const double* x, size_t n, double* out);

}  // namespace plumb::harness
