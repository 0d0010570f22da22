// Sums and maxima over the threads of a block, in an order that never varies.
#pragma once

#include "kernels/gpu/gpu.h"

namespace plumb::PLUMB_GPU_VENDOR {

// The mean of some numbers, the sum of their squared deviations from it, and how many they are.
struct Moments {
  float mean = 0, squares = 0, count = 0;
};

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
  // Of all numbers from those of each wave: one exchange where a mean and then the deviations from
  // it take two (Chan, Golub and LeVeque 1979). As accurate: every deviation is from a mean. The
  // count is left out: who gives its reciprocal has it. Once per kernel: there is one place for it.
  __device__ Moments moments(Moments of_wave, float reciprocal_of_count) {
    const unsigned thread = thread_index().x, waves = block_size().x / Wave;
    if (waves == 1) return of_wave;
    auto& partial = block_shared<PartialMoments>();
    const auto put = [&](unsigned place, Moments m) {
      partial.mean[place] = m.mean;
      partial.squares[place] = m.squares;
      partial.count[place] = m.count;
    };
    if (thread % Wave == 0) put(thread / Wave, of_wave);
    if (thread < (0u - waves) % kAtOnce) put(waves + thread, {});
    block_barrier();
    Moments all;
    for_each_wave(waves, [&](unsigned w) {
      const auto mean = load_vector<kAtOnce>(partial.mean + w);
      const auto count = load_vector<kAtOnce>(partial.count + w);
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        all.mean = fused_multiply_add(count[i], mean[i], all.mean);
      }
    });
    all.mean *= reciprocal_of_count;
    for_each_wave(waves, [&](unsigned w) {
      const auto mean = load_vector<kAtOnce>(partial.mean + w);
      const auto squares = load_vector<kAtOnce>(partial.squares + w);
      const auto count = load_vector<kAtOnce>(partial.count + w);
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const float deviation = mean[i] - all.mean;
        all.squares += fused_multiply_add(count[i] * deviation, deviation, squares[i]);
      }
    });
    return all;
  }

 private:
  static constexpr unsigned kAtOnce = 4;  // partial results in one read
  static constexpr unsigned kMostWaves = 1024 / Wave;
  struct alignas(16) Partial {
    float of_wave[2][kMostWaves];
  };
  struct alignas(16) PartialMoments {
    float mean[kMostWaves], squares[kMostWaves], count[kMostWaves];
  };

  template <class Use>
  __device__ void for_each_wave(unsigned waves, Use use) {
#pragma unroll 1
    for (unsigned w = 0; w < waves; w += kAtOnce) use(w);
  }

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
    for_each_wave(waves, [&](unsigned w) {
      const auto some = load_vector<kAtOnce>(partial + w);
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) total = combine(total, some[i]);
    });
    return total;
  }

  int turn_ = 0;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
