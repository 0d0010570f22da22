// One token of the Mamba2 scan: S = S exp(dt A) + R(R(dt b) x), y = R(R(R(S) c) + R(x d)).
//
// Bound by reading and writing the state [B, H, P, N]: a wave owns a row of it, lanes lie along N.
// The row is on its way before anything is computed. Every element is read and written by one lane:
// the state may be updated in place.
#include "kernels/gpu/ssd.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kInFlight = 4;  // elements of a lane that are read at once

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads)
    step_state_rows(SsdOperands<T> p, Strided<T> y, Divisor head_dim, Divisor heads) {
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t waves = int64_t{grid_size().x} * (kThreads / Wave);
  const int64_t total = p.batch * p.heads * p.head_dim;
  int64_t item = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  wait_for_previous_kernel();
  for (; item < total; item += waves) {
    const Division place = divide(item, head_dim), outer = divide(place.quotient, heads);
    const int64_t column = place.remainder, head = outer.remainder, row = outer.quotient;
    const T* b = p.b.at(row, 0, head / p.per_group);
    const T* c = p.c.at(row, 0, head / p.per_group);
    const float* state = p.state.at(row, head, column);
    float* after = p.after.data ? p.after.at(row, head, column) : nullptr;
    float dt = 0, decay = 0, x = 0, sum = 0;
    for (int64_t first = lane; first - lane < p.columns; first += kInFlight * Wave) {
      float kept[kInFlight], in[kInFlight], out[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t n = first + j * Wave;
        const bool inside = n < p.columns;
        kept[j] = inside ? state[n] : 0.0f;
        in[j] = inside ? to_float(b[n]) : 0.0f;
        out[j] = inside ? to_float(c[n]) : 0.0f;
      }
      if (first == lane) {
        x = to_float(p.x.at(row, 0, head)[column]);
        dt = p.time_step(row, 0, head);
        decay = expf(dt * p.rate(head));
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t n = first + j * Wave;
        if (n >= p.columns) break;
        const float next = kept[j] * decay + rounded<T>(rounded<T>(dt * in[j]) * x);
        if (after) after[n] = next;
        sum = fused_multiply_add(rounded<T>(next), out[j], sum);
      }
    }
    sum = warp_sum<Wave>(sum);
    if (lane > 0) continue;
    const float skip = rounded<T>(x * to_float(p.d[head]));
    y.at(row, 0, head)[column] = from_float<T>(rounded<T>(sum) + skip);
  }
}

}  // namespace

void GpuOps::ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in) {
  if (y.numel() == 0) return;
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, {});
    with_wave(stream(), [&]<int Wave>() {
      constexpr auto kKernel = step_state_rows<T, Wave>;
      launch_overlapped<kKernel>(
          "ssd_scan", {grid_for(divisible("ssd_scan", y.numel()), kThreads / Wave)}, {kThreads}, 0,
          stream(), p, Strided<T>(y), Divisor(p.head_dim), Divisor(p.heads));
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
