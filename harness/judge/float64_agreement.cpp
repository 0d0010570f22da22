#include "harness/judge/float64_agreement.h"

#include <cmath>

#include "harness/judge/limits.h"
#include "harness/judge/sums.h"

namespace plumb::harness {

Float64Agreement float64_agreement(const std::vector<double>& y, const std::vector<double>& o,
                                   const std::vector<double>& delta,
                                   const std::vector<uint8_t>& compared, double max_abs) {
  Float64Agreement out;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!compared[i]) continue;
    const double rounding = delta.empty() ? 0 : kLimits.float64_delta * std::fabs(delta[i]);
    const double share =
        quotient(std::fabs(y[i] - o[i]), kLimits.float64_relative * max_abs + rounding);
    if (!exceeds(share, out.share)) continue;
    out = {share, static_cast<int64_t>(i)};
  }
  return out;
}

}  // namespace plumb::harness
