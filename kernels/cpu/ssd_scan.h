// What both forms of the Mamba2 scan share.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/ops/ops.h"

namespace plumb::cpu {

// R(softplus(R(dt + bias))), clamped to R(dt_min) and R(dt_max), of one token and head.
inline double time_step(const SsdInputs& in, const SsdParams& params, int64_t row, int64_t token,
                        int64_t head) {
  const DType storage = in.x.dtype();
  const int64_t size = size_of(storage);
  const auto at = [&](const Tensor& t, int64_t i) {
    return load(storage, t.data<char>() + i * size);
  };
  const double raw = at(in.dt, row * in.dt.stride(0) + token * in.dt.stride(1) + head);
  const double biased = round_to(storage, raw + at(in.dt_bias, head));
  double dt = round_to(storage, biased > 20 ? biased : std::log1p(std::exp(biased)));
  if (params.dt_min) dt = std::max(dt, round_to(storage, *params.dt_min));
  if (params.dt_max) dt = std::min(dt, round_to(storage, *params.dt_max));
  return dt;
}

// One number per head.
inline double of_head(const Tensor& t, int64_t head) {
  return load(t.dtype(), t.data<char>() + head * size_of(t.dtype()));
}

}  // namespace plumb::cpu
