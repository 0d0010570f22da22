// Sums and maxima over the threads of a block, in an order that never varies.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

// The sum of v over all threads (a whole number of waves, at most 1024), in every thread.
template <int Wave>
__device__ inline float block_sum(float v) {
  struct Partial {
    float of_wave[1024 / Wave];
  };
  Partial& partial = block_shared<Partial>();
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int wave = static_cast<int>(thread_index().x) / Wave;
  const int waves = static_cast<int>(block_size().x) / Wave;
  v = warp_sum<Wave>(v);
  if (waves == 1) return v;
  block_barrier();  // the partial sums of an earlier call have been read
  if (lane == 0) partial.of_wave[wave] = v;
  block_barrier();
  float total = 0;
  for (int w = 0; w < waves; ++w) total += partial.of_wave[w];
  return total;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
