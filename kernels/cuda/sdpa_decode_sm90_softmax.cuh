// The softmax of a warp of sdpa_decode_sm90, 16 keys at a time: scores S^T [16 keys, 8 columns] in
// the layout of products (sm90_warp_products.cuh) become weights, which multiply the values.
//
// Column c is row c % R. Weights are split into two bf16, high and low, which keep 16 bits
// together: where columns are left over, the second R of them have the low halves; else these are a
// second operand. Running maxima may lag by a factor of 2^8: float32 sums lose nothing by it, and
// outputs are seldom rescaled.
#pragma once

#include "kernels/cuda/sm90_instructions.cuh"
#include "kernels/gpu/sdpa_decode_rows.h"

namespace plumb::cuda::sm90 {

template <int R>
struct DecodeSoftmax {
  static constexpr int kColumns = 8, kOperands = R == kColumns ? 2 : 1;
  static constexpr float kLag = 8;  // scores are powers of two

  // Of the lane's columns, 2 (lane % 4) and the next.
  const int part;  // 0: they have the high halves, 1: the low ones, else nothing
  float best[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of the keys that the lane held
  float factor[2];          // that the output takes when weigh() says so

  __device__ __forceinline__ explicit DecodeSoftmax(int lane) : part(2 * (lane % 4) / R) {}

  // Products of queries and keys become scores. The lane's keys: `key` and the eighth after it.
  __device__ __forceinline__ void score(const decode::DecodeOperands<BFloat16>& p, float (&x)[4],
                                        int key, int last) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] *= p.scale;
      if (p.cap != 0) x[i] = p.cap * decode::cap_tanh<BFloat16>(x[i]);
      if (key + i / 2 * 8 >= last) x[i] = -INFINITY;
    }
  }

  // True when the output must take `factor` before more is added to it.
  __device__ __forceinline__ bool raise_maximum(const float (&x)[4]) {
    float now[2] = {fmaxf(x[0], x[2]), fmaxf(x[1], x[3])};
    if (!__any_sync(~0u, now[0] > best[0] + kLag || now[1] > best[1] + kLag)) return false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) {
        now[c] = fmaxf(now[c], __shfl_xor_sync(~0u, now[c], mask));
      }
      const float next = now[c] > best[c] + kLag ? now[c] : best[c];
      factor[c] = decode::weight_of(best[c], next);
      best[c] = next;
      total[c] *= factor[c];
    }
    return true;
  }

  // P^T, the right operands of V^T P^T.
  __device__ __forceinline__ void weigh(const float (&x)[4], uint32_t (&weights)[kOperands][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float w[2] = {decode::weight_of(x[2 * i], best[0]),
                          decode::weight_of(x[2 * i + 1], best[1])};
      total[0] += w[0];
      total[1] += w[1];
      const uint32_t high = pack<BFloat16>(w[0], w[1]);
      const uint32_t low = pack<BFloat16>(w[0] - __uint_as_float(high << 16),
                                          w[1] - __uint_as_float(high & 0xffff0000u));
      if constexpr (kOperands == 2) {
        weights[0][i] = transpose_8x8(high);
        weights[1][i] = transpose_8x8(low);
      } else {
        weights[0][i] = transpose_8x8(part == 0 ? high : part == 1 ? low : 0);
      }
    }
  }

  // Once all keys are in: the warp's sums.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) {
        total[c] += __shfl_xor_sync(~0u, total[c], mask);
      }
    }
  }

  // An output, for lanes with part 0, from what each operand gave. Infinite values times low halves
  // would be NaN.
  static __device__ __forceinline__ float joined(float high, float of_second) {
    const float low = kOperands == 2 ? of_second : __shfl_xor_sync(~0u, high, R / 2);
    return fabsf(high) < INFINITY ? high + low : high;
  }
};

}  // namespace plumb::cuda::sm90
