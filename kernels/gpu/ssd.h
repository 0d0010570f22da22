// What both forms of the Mamba2 scan share on a GPU.
#pragma once

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {

// A tensor [B, T, .., D] or [B, .., .., D]: its first element and the strides of its outer axes.
template <class T>
struct Strided {
  T* data;
  int64_t stride[3];
  Strided() = default;
  explicit Strided(const Tensor& t)
      : data(t.defined() ? t.data<std::remove_const_t<T>>() : nullptr), stride{} {
    for (int i = 0; t.defined() && i < 3 && i + 1 < t.rank(); ++i) stride[i] = t.stride(i);
  }
  __host__ __device__ T* at(int64_t i, int64_t j, int64_t k) const {
    return data + i * stride[0] + j * stride[1] + k * stride[2];
  }
};

template <class T>
struct SsdOperands {
  Strided<const T> x, b, c;  // [B, T, H, P], [B, T, G, N]
  Strided<const T> dt;       // [B, T, H]
  const T* a_log;
  const T* d;
  const T* dt_bias;
  Strided<const float> state;  // [B, H, P, N]; no data: zeros
  Strided<float> after;        // no data: not wanted
  int64_t batch, tokens, heads, head_dim, columns, per_group;
  float dt_min, dt_max;

  SsdOperands(const Tensor& state_after, const SsdInputs& in, const SsdParams& params)
      : x(in.x),
        b(in.b),
        c(in.c),
        dt(in.dt),
        a_log(in.a_log.data<T>()),
        d(in.d.data<T>()),
        dt_bias(in.dt_bias.data<T>()),
        state(in.state),
        after(state_after),
        batch(in.x.dim(0)),
        tokens(in.x.dim(1)),
        heads(in.x.dim(2)),
        head_dim(in.x.dim(3)),
        columns(in.b.dim(3)),
        per_group(in.x.dim(2) / in.b.dim(2)) {
    const auto limit = [&](const std::optional<double>& value, float none) {
      return value ? static_cast<float>(round_to(in.x.dtype(), *value)) : none;
    };
    dt_min = limit(params.dt_min, 0.0f);  // softplus is positive
    dt_max = limit(params.dt_max, INFINITY);
  }

  // R(softplus(R(dt + bias))), clamped.
  __device__ float time_step(int64_t row, int64_t token, int64_t head, float bias) const {
    const float v = rounded<T>(to_float(dt.at(row, token, 0)[head]) + bias);
    const float step = rounded<T>(v > 20.0f ? v : log1pf(expf(v)));
    return step < dt_min ? dt_min : step > dt_max ? dt_max : step;  // NaN stays
  }
  // The derivative of that by dt: 0 where the clamp has changed it.
  __device__ float time_step_slope(int64_t row, int64_t token, int64_t head, float bias) const {
    const float v = rounded<T>(to_float(dt.at(row, token, 0)[head]) + bias);
    const float step = rounded<T>(v > 20.0f ? v : log1pf(expf(v)));
    if (step < dt_min || step > dt_max) return 0.0f;
    return v > 20.0f ? 1.0f : 1 / (1 + expf(-v));
  }
  // A, by which a head decays.
  __device__ float rate(int64_t head) const { return -expf(to_float(a_log[head])); }
};

}  // namespace plumb::PLUMB_GPU_VENDOR
