// The agreement of two derivations in float64: one of them is o, of which the recording has the
// distance from the reference, rounded to float32.
#pragma once

#include <cstdint>
#include <vector>

namespace plumb::harness {

struct Float64Agreement {
  double share = 0;  // the largest |y - o|, as a share of 1e-12 max|o| + max(2^-24 |delta|, 2^-150)
  int64_t at = -1;   // position of that element
};

// Over the elements that are `compared`. An empty delta is zero.
Float64Agreement float64_agreement(const std::vector<double>& y, const std::vector<double>& o,
                                   const std::vector<double>& delta,
                                   const std::vector<uint8_t>& compared, double max_abs);

}  // namespace plumb::harness
