// The spread of simulated correct kernels, as a recording states it or as it is computed here: what
// float32 arithmetic in another order may show of each statistic.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plumb::harness {

// One gate's statistic over the simulated kernels.
struct SpreadOf {
  std::string gate;  // "tensor", "token", ..., "gain" (of |g|), "sketch"; "bits": elements that
                     // differ from the rounded model
  double mean = 0;
  double deviation = 0;  // standard deviation, of a sample
  double largest = 0;
};

struct Spread {
  int64_t runs = 0;
  std::vector<SpreadOf> gates;

  const SpreadOf* find(std::string_view gate) const;  // null where there is none
};

}  // namespace plumb::harness
