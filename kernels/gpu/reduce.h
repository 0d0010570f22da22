// Sums and maxima over the threads of a block, in an order that never varies.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

// Reductions of v over all threads of a block (a whole number of waves, at most 1024); every thread
// gets the result. One object per kernel: it alternates between two places in shared memory, so
// that a barrier per reduction is enough.
template <int Wave>
class BlockReduction {
 public:
  __device__ float sum(float v) {
    return reduce(warp_sum<Wave>(v), [](float a, float b) { return a + b; });
  }
  __device__ float max(float v) {  // NaN wins
    return reduce(warp_max<Wave>(v), [](float a, float b) { return b > a || b != b ? b : a; });
  }

 private:
  struct Partial {
    float of_wave[2][1024 / Wave];
  };

  template <class Combine>
  __device__ float reduce(float of_wave, Combine combine) {
    const int waves = static_cast<int>(block_size().x) / Wave;
    if (waves == 1) return of_wave;
    float* partial = block_shared<Partial>().of_wave[turn_];
    turn_ ^= 1;
    const int thread = static_cast<int>(thread_index().x);
    if (thread % Wave == 0) partial[thread / Wave] = of_wave;
    block_barrier();
    float total = partial[0];
    for (int w = 1; w < waves; ++w) total = combine(total, partial[w]);
    return total;
  }

  int turn_ = 0;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
