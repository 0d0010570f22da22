// One token of the Mamba2 scan: S = S exp(dt A) + R(R(dt b) x), y = R(R(R(S) c) + R(x d)).
//
// Bound by reading and writing the state [B, H, P, N]: a wave owns some rows of one head, lanes lie
// along N. The rows are on their way before anything is computed, and share what the head has in
// common. Every element is read and written by one lane: the state may be updated in place.
#include "kernels/gpu/ssd.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kInFlight = 4;  // elements of a lane that are read at once
constexpr int kRows = 4;                      // of a wave

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads)
    step_state_rows(SsdOperands<T> p, Strided<T> y, Divisor groups, Divisor heads) {
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int64_t waves = int64_t{grid_size().x} * (kThreads / Wave);
  const int64_t total = p.batch * p.heads * groups.value();
  int64_t item = int64_t{block_index().x} * (kThreads / Wave) + thread_index().x / Wave;
  wait_for_previous_kernel();
  for (; item < total; item += waves) {
    const Division place = divide(item, groups), outer = divide(place.quotient, heads);
    const int64_t first_row = int64_t{place.remainder} * kRows;
    const int64_t head = outer.remainder, batch = outer.quotient;
    const int64_t rows = p.head_dim - first_row < kRows ? p.head_dim - first_row : kRows;
    const T* b = p.b.at(batch, 0, head / p.per_group);
    const T* c = p.c.at(batch, 0, head / p.per_group);
    float dt = 0, decay = 0, x[kRows] = {}, sum[kRows] = {};
    for (int64_t first = lane; first - lane < p.columns; first += kInFlight * Wave) {
      float kept[kRows][kInFlight], in[kInFlight], out[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t n = first + j * Wave;
        const bool inside = n < p.columns;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          kept[r][j] = inside && r < rows ? p.state.at(batch, head, first_row + r)[n] : 0.0f;
        }
        in[j] = inside ? to_float(b[n]) : 0.0f;
        out[j] = inside ? to_float(c[n]) : 0.0f;
      }
      if (first == lane) {
        const T* values = p.x.at(batch, 0, head) + first_row;
#pragma unroll
        for (int r = 0; r < kRows; ++r) x[r] = r < rows ? to_float(values[r]) : 0.0f;
        dt = p.time_step(batch, 0, head);
        decay = expf(dt * p.rate(head));
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int64_t n = first + j * Wave;
        if (n >= p.columns) break;
        const float step = rounded<T>(dt * in[j]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float next = kept[r][j] * decay + rounded<T>(step * x[r]);
          if (p.after.data && r < rows) p.after.at(batch, head, first_row + r)[n] = next;
          sum[r] = fused_multiply_add(rounded<T>(next), out[j], sum[r]);
        }
      }
    }
    const float d = to_float(p.d[head]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total_of_row = warp_sum<Wave>(sum[r]);
      if (lane != r || r >= rows) continue;
      y.at(batch, 0, head)[first_row + r] =
          from_float<T>(rounded<T>(total_of_row) + rounded<T>(x[r] * d));
    }
  }
}

}  // namespace

void GpuOps::ssd_step(const Tensor& y, const Tensor& state_after, const SsdInputs& in) {
  if (y.numel() == 0) return;
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, {});
    const int64_t groups = (p.head_dim + kRows - 1) / kRows;
    const int64_t waves = divisible("ssd_scan", p.batch * p.heads * groups);
    with_wave(stream(), [&]<int Wave>() {
      constexpr auto kKernel = step_state_rows<T, Wave>;
      launch_overlapped<kKernel>("ssd_scan", {grid_for(waves, kThreads / Wave)}, {kThreads}, 0,
                                 stream(), p, Strided<T>(y), Divisor(groups), Divisor(p.heads));
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
