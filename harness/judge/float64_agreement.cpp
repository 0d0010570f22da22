#include "harness/judge/float64_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/judge/limits.h"
#include "harness/judge/sums.h"

namespace plumb::harness {

namespace {

// What the delta of a value that small is rounded to a multiple of.
constexpr double kSmallest = std::numeric_limits<float>::denorm_min();

}  // namespace

Float64Agreement float64_agreement(const std::vector<double>& y, const std::vector<double>& o,
                                   const std::vector<double>& delta,
                                   const std::vector<uint8_t>& compared, double max_abs) {
  Float64Agreement out;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!compared[i]) continue;
    const double of_delta = delta.empty() ? 0 : kLimits.float64_delta * std::fabs(delta[i]);
    const double rounding = std::max(of_delta, kSmallest / 2);  // none is stored that is all zero
    const double share =
        quotient(std::fabs(y[i] - o[i]), kLimits.float64_relative * max_abs + rounding);
    if (!exceeds(share, out.share)) continue;
    out = {share, static_cast<int64_t>(i)};
  }
  return out;
}

}  // namespace plumb::harness
