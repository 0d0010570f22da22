// What both forms of the Mamba2 scan share.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/ops/ops.h"

namespace plumb::cpu {

// R(dt + bias) of one token and head.
inline double biased_step(const SsdInputs& in, int64_t row, int64_t token, int64_t head) {
  const DType storage = in.x.dtype();
  const int64_t size = size_of(storage);
  const auto at = [&](const Tensor& t, int64_t i) {
    return load(storage, t.data<char>() + i * size);
  };
  const double raw = at(in.dt, row * in.dt.stride(0) + token * in.dt.stride(1) + head);
  return round_to(storage, raw + at(in.dt_bias, head));
}

// R(softplus(R(dt + bias))), clamped to R(dt_min) and R(dt_max), of one token and head.
inline double time_step(const SsdInputs& in, const SsdParams& params, int64_t row, int64_t token,
                        int64_t head) {
  const DType storage = in.x.dtype();
  const double biased = biased_step(in, row, token, head);
  double dt = round_to(storage, biased > 20 ? biased : std::log1p(std::exp(biased)));
  if (params.dt_min) dt = std::max(dt, round_to(storage, *params.dt_min));
  if (params.dt_max) dt = std::min(dt, round_to(storage, *params.dt_max));
  return dt;
}

// Its derivative by dt: 0 where the clamp has changed it.
inline double time_step_slope(const SsdInputs& in, const SsdParams& params, int64_t row,
                              int64_t token, int64_t head) {
  const double biased = biased_step(in, row, token, head);
  if (time_step(in, params, row, token, head) != time_step(in, {}, row, token, head)) return 0;
  return biased > 20 ? 1 : 1 / (1 + std::exp(-biased));
}

// One number per head.
inline double of_head(const Tensor& t, int64_t head) {
  return load(t.dtype(), t.data<char>() + head * size_of(t.dtype()));
}

}  // namespace plumb::cpu
