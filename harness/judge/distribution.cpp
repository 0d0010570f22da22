#include "harness/judge/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace plumb::harness {
namespace {

constexpr int64_t kFar = int64_t{1} << 62;

// The bits of 2^exponent.
uint64_t exponent_bits(int exponent) { return static_cast<uint64_t>(exponent + 1023) << 52; }

// Normal results that cannot overflow: the significand is rounded to nearest even on the bits.
void round_normal(const DTypeInfo& format, const double* x, size_t n, double* out) {
  const int dropped = 53 - format.significand_bits;
  const uint64_t half = (uint64_t{1} << (dropped - 1)) - 1;
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint64_t>(x[i]);
    const uint64_t odd = (bits >> dropped) & 1;
    out[i] = std::bit_cast<double>((bits + half + odd) >> dropped << dropped);
  }
}

// A monotone integer for a finite value of a floating dtype: neighbours differ by one, zero is
// zero.
int64_t ordinal(const DTypeInfo& format, double x) {
  const double magnitude = std::fabs(x);
  const int mantissa_bits = format.significand_bits - 1;
  int64_t out = 0;
  if (magnitude < std::bit_cast<double>(exponent_bits(format.min_exponent))) {
    out = static_cast<int64_t>(std::ldexp(magnitude, mantissa_bits - format.min_exponent));
  } else {
    // The bits of normal doubles, cut to the format's significand, count its values one by one.
    const auto bits = std::bit_cast<int64_t>(magnitude) >> (52 - mantissa_bits);
    const int64_t smallest_normal = int64_t{format.min_exponent + 1023} << mantissa_bits;
    out = bits - smallest_normal + (int64_t{1} << mantissa_bits);
  }
  return x < 0 ? -out : out;
}

}  // namespace

double octave_quantile(const std::vector<int64_t>& octaves, double p) {
  int64_t total = 0;
  for (const int64_t count : octaves) total += count;
  if (total == 0) return 0;
  const double needed = p * static_cast<double>(total);
  int64_t seen = 0;
  for (int bin = 0; bin < kOctaves - 1; ++bin) {
    seen += octaves[static_cast<size_t>(bin)];
    if (seen > 0 && static_cast<double>(seen) >= needed)
      return std::ldexp(1.0, kLowestOctave + bin);
  }
  return std::numeric_limits<double>::infinity();
}

int ulp_bin(int64_t distance) {
  if (distance == 0) return 0;
  const auto bin = 1 + static_cast<int>(std::bit_width(static_cast<uint64_t>(distance - 1)));
  return std::min(bin, kUlpBins - 1);
}

int64_t ulp_distance(DType dtype, double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kFar;
  const DTypeInfo& format = info(dtype);
  if (!format.floating) return static_cast<int64_t>(std::min(std::fabs(a - b), 0x1p62));
  const int64_t from = ordinal(format, a), to = ordinal(format, b);
  // Doubles of opposite sign may be more than 2^63 apart.
  if (std::abs(from / 4 - to / 4) >= kFar / 4) return kFar;
  return std::abs(from - to);
}

double round_quickly(DType dtype, double x) {
  double out = 0;
  round_all(dtype, &x, 1, &out);
  return out;
}

void round_all(DType dtype, const double* x, size_t n, double* out) {
  const DTypeInfo& format = info(dtype);
  if (dtype == DType::f64) {
    std::copy_n(x, n, out);
  } else if (dtype == DType::f32) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<double>(static_cast<float>(x[i]));
  } else if (!format.floating) {
    for (size_t i = 0; i < n; ++i) out[i] = std::nearbyint(x[i]);
  } else {
    round_normal(format, x, n, out);
    const auto smallest = std::bit_cast<double>(exponent_bits(format.min_exponent));
    for (size_t i = 0; i < n; ++i) {
      const double size = std::fabs(x[i]);
      if (!(size >= smallest && size < format.max / 2)) out[i] = round_to(dtype, x[i]);
    }
  }
}

}  // namespace plumb::harness
