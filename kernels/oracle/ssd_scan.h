// What the Mamba2 scan and its gradients share on the oracle.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

// dt_t after bias, softplus and, in the chunk form, the clamp.
struct TimeStep {
  DType storage;
  Rounding biased{storage, "ssd_scan.dt_bias"};
  Rounding rounded{storage, "ssd_scan.dt"};
  Noise noise{storage};

  struct Value {
    double dt;
    double slope;  // its derivative; 0 where the clamp has changed it
  };
  Value operator()(double raw, double bias, const SsdParams& params) const {
    const double v = biased(raw + bias);
    const double unclamped = rounded(noise.function(v > 20 ? v : std::log1p(std::exp(v))));
    double dt = unclamped;
    if (params.dt_min) dt = std::max(dt, round_to(storage, *params.dt_min));
    if (params.dt_max) dt = std::min(dt, round_to(storage, *params.dt_max));
    const double slope = v > 20 ? 1 : noise.function(1 / (1 + std::exp(-v)));
    return {dt, dt == unclamped ? slope : 0};
  }
};

}  // namespace plumb
