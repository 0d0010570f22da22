// Sums and maxima over the threads of a block, in an order that never varies.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

// v of all threads (a whole number of waves, at most 1024) reduced in every thread: `over_wave`
// reduces a wave, `combine` two partial results.
template <int Wave, class OverWave, class Combine>
__device__ inline float block_reduce(float v, OverWave over_wave, Combine combine) {
  struct Partial {
    float of_wave[1024 / Wave];
  };
  Partial& partial = block_shared<Partial>();
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int wave = static_cast<int>(thread_index().x) / Wave;
  const int waves = static_cast<int>(block_size().x) / Wave;
  v = over_wave(v);
  if (waves == 1) return v;
  block_barrier();  // the partial sums of an earlier call have been read
  if (lane == 0) partial.of_wave[wave] = v;
  block_barrier();
  float total = partial.of_wave[0];
  for (int w = 1; w < waves; ++w) total = combine(total, partial.of_wave[w]);
  return total;
}

template <int Wave>
__device__ inline float block_sum(float v) {
  return block_reduce<Wave>(
      v, [](float x) { return warp_sum<Wave>(x); }, [](float a, float b) { return a + b; });
}

// NaN wins.
template <int Wave>
__device__ inline float block_max(float v) {
  return block_reduce<Wave>(
      v, [](float x) { return warp_max<Wave>(x); },
      [](float a, float b) { return b > a || b != b ? b : a; });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
