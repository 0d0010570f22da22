#include "harness/recording/reference_error.h"

#include <cmath>
#include <limits>

#include "harness/recording/layout.h"

namespace plumb::harness {

double reference_error(const std::vector<double>& reference, const std::vector<double>& delta,
                       const std::vector<uint8_t>& valid) {
  double above = 0, below = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!valid[i]) continue;
    if (!std::isfinite(reference[i])) {
      if (delta[i] != 0) return std::numeric_limits<double>::infinity();
      continue;
    }
    const double o = reference[i] + delta[i];
    above += delta[i] * delta[i];
    below += o * o;
  }
  return above == 0 ? 0 : std::sqrt(above / below);
}

bool is_stated(double stated, double computed) {
  // The recorder's sums have another order, and a delta that was not yet rounded to float32.
  constexpr double kTolerance = 1e-6;
  if (!std::isfinite(stated) || !std::isfinite(computed)) {
    return std::isfinite(stated) == std::isfinite(computed);
  }
  return std::fabs(stated - computed) <= kTolerance * std::fabs(computed);
}

}  // namespace plumb::harness
