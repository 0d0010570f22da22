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
    return reduce(warp_sum<Wave>(v), 0.0f, [](float a, float b) { return a + b; });
  }
  __device__ float max(float v) {  // NaN wins
    return reduce(warp_max<Wave>(v), -INFINITY,
                  [](float a, float b) { return b > a || b != b ? b : a; });
  }

 private:
  static constexpr unsigned kAtOnce = 4;  // partial results in one read
  struct alignas(16) Partial {
    float of_wave[2][1024 / Wave];
  };

  // neutral: what combine leaves as it is.
  template <class Combine>
  __device__ float reduce(float of_wave, float neutral, Combine combine) {
    const unsigned thread = thread_index().x, waves = block_size().x / Wave;
    if (waves == 1) return of_wave;
    float* partial = block_shared<Partial>().of_wave[turn_];
    turn_ ^= 1;
    if (thread % Wave == 0) partial[thread / Wave] = of_wave;
    if (thread < (0u - waves) % kAtOnce) partial[waves + thread] = neutral;
    block_barrier();
    float total = neutral;
#pragma unroll 1
    for (unsigned w = 0; w < waves; w += kAtOnce) {
      const auto some = load_vector<kAtOnce>(partial + w);
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) total = combine(total, some[i]);
    }
    return total;
  }

  int turn_ = 0;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
