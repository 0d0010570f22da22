// Adds up what the splits of the keys gave: in the last block of a chunk of rows, or in a kernel of
// its own.
#pragma once

#include "kernels/gpu/reduce.h"
#include "kernels/gpu/sdpa_decode_rows.h"

namespace plumb::PLUMB_GPU_VENDOR::decode {

// Whether the block's is the last of the splits to be done; then it sees them all. Never where a
// kernel of its own adds them up.
template <class T>
__device__ inline bool is_last_split(const DecodeOperands<T>& p, const KeySplits& keys,
                                     int64_t chunk) {
  if (p.combined_apart) return false;
  if (p.tickets) return last_to_pass(p.tickets + chunk, static_cast<unsigned>(keys.splits));
  block_barrier();
  return true;
}

// A thread has N neighbouring channels of a row; where there are threads left, kSharers of them
// take every kSharers-th split.
template <int Lanes, int R>
struct SplitSums {
  static constexpr int N = 4, kOfRow = Lanes * kChannels / N, kPieces = R * kOfRow;
  static constexpr int kSharers = kPieces < kThreads ? kThreads / kPieces : 1;
  float factor[R][kMostSplits], total[R];
  alignas(16) float sum[kThreads][N];
};

// The weight of each split in its row, and the sum of all weights: a wave per row.
template <class T, int Wave, int Lanes, int R>
__device__ inline void weigh_splits(const DecodeOperands<T>& p, SplitSums<Lanes, R>& shared,
                                    const KeySplits& keys, int64_t z, int row0) {
  constexpr int kOwn = kMostSplits / Wave;
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  for (int r = thread / Wave; r < R; r += kThreads / Wave) {
    float best[kOwn], weight[kOwn], most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int split = lane + j * Wave;
      const bool there = split < keys.splits && row0 + r < p.rows;
      const float* state = p.state + 2 * ((z * p.splits + split) * p.rows + row0 + r);
      const auto found = there ? load_vector<2>(state) : Vector<float, 2>{{-INFINITY, 0.0f}};
      best[j] = found[0];
      weight[j] = found[1];
      most = fmaxf(most, best[j]);
    }
    most = warp_max<Wave>(most);
    float total = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const float factor = weight_of(best[j], most);
      shared.factor[r][lane + j * Wave] = factor;
      total = fused_multiply_add(factor, weight[j], total);
    }
    total = warp_sum<Wave>(total);
    if (lane == 0) shared.total[r] = total;
  }
}

// The mean of a channel over all values: what a row gives that may see none, if it is not zero.
template <class T>
__device__ inline float uniform_mean(const DecodeOperands<T>& p, const KeySplits& keys, int64_t z,
                                     int channel) {
  const T* v = p.v + z / p.kv_heads * p.v_stride[0] + z % p.kv_heads * p.v_stride[1] + channel;
  const int64_t from = p.slots.past ? keys.first : 0, to = p.slots.past ? keys.last : p.keys;
  float sum = 0;
  for (int64_t s = from; s < to; ++s) sum += to_float(v[s * p.v_stride[2]]);
  return sum / static_cast<float>(to - from);
}

template <class T, int Wave, int Lanes, int R>
__device__ inline void combine_splits(const DecodeOperands<T>& p, const KeySplits& keys, int64_t z,
                                      int row0) {
  using Sums = SplitSums<Lanes, R>;
  constexpr int N = Sums::N;
  static_assert(sizeof(Sums) <= sizeof(GroupStates<Lanes, R>));
  Sums& shared = *dynamic_shared<Sums>();  // all have used the groups' states: there was a barrier
  weigh_splits<T, Wave>(p, shared, keys, z, row0);
  block_barrier();
  const int thread = static_cast<int>(thread_index().x), share = thread / Sums::kPieces;
  for (int i = thread % Sums::kPieces; i < Sums::kPieces; i += kThreads) {
    const int r = i / Sums::kOfRow, channel = i % Sums::kOfRow * N;
    const bool there = row0 + r < p.rows && channel < p.head_dim;
    float sum[N] = {};
    if (there) {
      const int64_t step = p.rows * p.head_dim;
      const float* from = p.partial + (z * p.splits * p.rows + row0 + r) * p.head_dim + channel;
#pragma unroll 8
      for (int s = share; s < keys.splits; s += Sums::kSharers) {
        const auto part = load_vector<N>(from + s * step);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sum[j] = fused_multiply_add(shared.factor[r][s], part[j], sum[j]);
        }
      }
    }
    if constexpr (Sums::kSharers > 1) {  // then each thread is here once
#pragma unroll
      for (int j = 0; j < N; ++j) shared.sum[thread][j] = sum[j];
      block_barrier();
      for (int other = 1; other < Sums::kSharers; ++other) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sum[j] += shared.sum[(thread + other * Sums::kPieces) % kThreads][j];
        }
      }
    }
    if (!there || share > 0) continue;
    const int64_t row = row0 + r, head = z % p.kv_heads * p.group + row % p.group;
    T* out = p.out + z / p.kv_heads * p.out_stride[0] + row / p.group * p.out_stride[1] +
             head * p.out_stride[2] + channel;
    const float total = shared.total[r];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float y = sum[j] / total;
      if (total == 0) y = p.uniform ? uniform_mean(p, keys, z, channel + j) : 0.0f;
      out[j] = from_float<T>(y);
    }
  }
}

// A block per (z, row) and 32 channels; groups of threads take every eighth split and add theirs in
// order, then the groups: few rows must spread over the whole device.
inline constexpr int kCombined = 32, kGroups = 8;
static_assert(kMostSplits <= kCombined * kGroups);

template <class T, int Wave>
__global__ void __launch_bounds__(kCombined* kGroups) sdpa_decode_combine(DecodeOperands<T> p) {
  wait_for_previous_kernel();
  struct Shared {
    float factor[kMostSplits];
    float sum[kGroups][kCombined];
  };
  Shared& shared = block_shared<Shared>();
  BlockReduction<Wave> block;
  const int thread = static_cast<int>(thread_index().x);
  const int channel = thread % kCombined, group = thread / kCombined;
  const int chunks = static_cast<int>((p.head_dim + kCombined - 1) / kCombined);
  const int d = static_cast<int>(block_index().x) % chunks * kCombined + channel;
  const int64_t row = block_index().x / chunks % p.rows, z = block_index().x / chunks / p.rows;
  const auto at = [&](int split) { return (z * p.splits + split) * p.rows + row; };
  const KeySplits keys = p.key_splits();

  float ahead[kMostSplits / kGroups];  // on their way while the factors are found
#pragma unroll
  for (int j = 0; j < kMostSplits / kGroups; ++j) {
    const int s = group + j * kGroups;
    ahead[j] = s < keys.splits && d < p.head_dim ? p.partial[at(s) * p.head_dim + d] : 0.0f;
  }
  const bool split = thread < keys.splits;
  const float best = split ? p.state[2 * at(thread)] : -INFINITY;
  const float weight = split ? p.state[2 * at(thread) + 1] : 0.0f;
  const float factor = weight_of(best, block.max(best));
  if (split) shared.factor[thread] = factor;
  const float total = block.sum(split ? factor * weight : 0.0f);  // a barrier: factors are there

  float sum = 0;
#pragma unroll
  for (int j = 0; j < kMostSplits / kGroups; ++j) {
    const int s = group + j * kGroups;
    if (s < keys.splits) sum = fused_multiply_add(shared.factor[s], ahead[j], sum);
  }
  shared.sum[group][channel] = sum;
  block_barrier();
  if (group > 0 || d >= p.head_dim) return;
  for (int g = 1; g < kGroups; ++g) sum += shared.sum[g][channel];

  float y = sum / total;
  if (total == 0) y = p.uniform ? uniform_mean(p, keys, z, d) : 0.0f;
  const int64_t token = row / p.group, head = z % p.kv_heads * p.group + row % p.group;
  p.out[z / p.kv_heads * p.out_stride[0] + token * p.out_stride[1] + head * p.out_stride[2] + d] =
      from_float<T>(y);
}

}  // namespace plumb::PLUMB_GPU_VENDOR::decode
