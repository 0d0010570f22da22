// The softmax of sdpa_sm90: 64 x kKeys scores of a warpgroup, in the layout of its products, become
// weights in place (online softmax: Milakov and Gimelshein 2018).
//
// A thread has two rows, r and r + 8, which it shares with the three other lanes of its quad. The
// running maximum may lag by a factor of 2^8: float32 sums lose nothing by it, and the output is
// seldom rescaled.
#pragma once

#include "kernels/cuda/sdpa_sm90_tiling.h"
#include "kernels/cuda/sm90_instructions.cuh"

namespace plumb::cuda::sm90 {

template <class Tiling>
struct Softmax {
  static constexpr int kKeys = Tiling::kKeys, kScores = kKeys / 2;

  const SdpaProblem& p;
  const int first_slot;         // of the warpgroup's first token
  const int own_slot, own_key;  // of this thread's first row, and its first column within a tile
  float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  float factor[2] = {1, 1};  // that the output takes when weigh() says so

  __device__ __forceinline__ Softmax(const SdpaProblem& problem, int first_query, int warp,
                                     int lane)
      : p(problem),
        first_slot(first_query + problem.shift),
        own_slot(first_slot + warp * 16 + lane / 4),
        own_key(2 * (lane % 4)) {}

  // Raw scores of a key tile become weights; true when the output must take `factor` first.
  __device__ __forceinline__ bool weigh(float (&s)[kScores], int key_tile) {
    if constexpr (Tiling::kCapped) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = p.cap_log2 * fast_tanh(s[i] * p.scale_over_cap);
    }
    const int key0 = key_tile * kKeys;
    const int seen_by_all = p.causal ? min(p.keys, first_slot + 1) : p.keys;
    const bool beyond = key0 + kKeys > seen_by_all;
    const bool before = p.window && key0 < first_slot + kGroupQueries - p.window;
    if (beyond || before) hide(s, key0);
    bool rescale = false;
    if constexpr (!Tiling::kFixedMaximum) rescale = raise_maximum(s);
    exponentials(s);
    return rescale;
  }

  // One over the row's sum, once all keys are in.
  __device__ __forceinline__ float inverse_total(int row) {
    float sum = total[row];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum != 0 ? fast_reciprocal(sum)
                    : 0;  // rows past the last token may have none; NaN stays
  }

 private:
  static constexpr float kLag = 8;
  // Factor of the scores in the exponent of two.
  __device__ __forceinline__ float slope() const { return Tiling::kCapped ? 1.0f : p.scale_log2; }

  // Keys outside the rows' bounds, which count from the thread's first column.
  __device__ __forceinline__ void hide(float (&s)[kScores], int key0) const {
    int first[2], end[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int slot = own_slot + 8 * row;
      first[row] = p.window ? slot - p.window + 1 - key0 - own_key : -kKeys;
      end[row] = (p.causal ? min(p.keys, slot + 1) : p.keys) - key0 - own_key;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = 8 * (i / 4) + (i & 1), row = (i >> 1) & 1;
      if (column >= end[row] || column < first[row]) s[i] = -INFINITY;
    }
  }

  __device__ __forceinline__ bool raise_maximum(const float (&s)[kScores]) {
    float largest[4] = {s[0], s[1], s[2], s[3]}, now[2];
#pragma unroll
    for (int i = 4; i < kScores; ++i) largest[i & 3] = fmaxf(largest[i & 3], s[i]);
    bool grown = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      now[row] = fmaxf(largest[2 * row], largest[2 * row + 1]);
      now[row] = fmaxf(now[row], __shfl_xor_sync(~0u, now[row], 1));
      now[row] = fmaxf(now[row], __shfl_xor_sync(~0u, now[row], 2));
      now[row] = fmaxf(now[row], maximum[row]);
      grown |= (now[row] - maximum[row]) * slope() > kLag;
    }
    const bool rescale = __any_sync(~0u, grown);
    if (!rescale) return false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      factor[row] = now[row] == -INFINITY ? 1.0f : fast_exp2((maximum[row] - now[row]) * slope());
      maximum[row] = now[row];
      total[row] *= factor[row];
    }
    return true;
  }

  __device__ __forceinline__ void exponentials(float (&s)[kScores]) {
    float offset[2] = {0, 0};
    if constexpr (!Tiling::kFixedMaximum) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        offset[row] = maximum[row] == -INFINITY ? 0.0f : -maximum[row] * slope();
      }
    }
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if constexpr (Tiling::kFixedMaximum) {
        s[i] = __uint_as_float(__float_as_uint(fast_exp2(s[i])) & 0xffff0000u);
      } else {
        s[i] = fast_exp2(fmaf(s[i], slope(), offset[(i >> 1) & 1]));
      }
      sum[i & 3] += s[i];
    }
    total[0] += sum[0] + sum[1];
    total[1] += sum[2] + sum[3];
  }
};

}  // namespace plumb::cuda::sm90
