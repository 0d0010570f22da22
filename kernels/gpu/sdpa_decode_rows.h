// What a block of sdpa_decode does with its keys: the softmax of a few rows, in registers.
#pragma once

#include <type_traits>

#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/slots.h"

namespace plumb::PLUMB_GPU_VENDOR::decode {

inline constexpr int kThreads = 128, kChannels = 8, kMostRows = 8;
// Keys that a lane group reads at a time, and blocks per multiprocessor: what the rows leave of the
// registers.
template <int R>
inline constexpr int kAheadOf = R < kMostRows ? 4 : 2;
template <int R>
inline constexpr int kBlocksOf = R < kMostRows ? 4 : 3;

inline constexpr int kFewestKeys = 64, kMostSplits = kThreads;

// The keys that the mask leaves, in splits.
struct KeySplits {
  int first, last, splits, keys_per_split;
};

// At most `most` splits, each but the last of a multiple of `unit` keys.
__host__ __device__ inline KeySplits split_keys(int first, int last, int most, int unit) {
  const int keys = last > first ? last - first : 1, fewest = (keys + kFewestKeys - 1) / kFewestKeys;
  const int splits = most < fewest ? most : fewest;
  const int per_split = ((keys + splits - 1) / splits + unit - 1) / unit * unit;
  return {first, last, (keys + per_split - 1) / per_split, per_split};
}

template <class T>
struct DecodeOperands {
  T* out;
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride[3], k_stride[3], v_stride[3];  // batch, head, token
  int64_t out_stride[3];                          // batch, token, head
  int64_t kv_heads, group, rows, keys, head_dim;  // rows: group * query tokens
  // Scores are in powers of two: dot * scale, or cap * tanh(dot * scale) where cap is not 0.
  float scale, cap;
  MaskView mask;
  int window;      // 0: none
  bool one_token;  // [first, last) is what every row may see, but for key_valid
  bool uniform;    // a row without an allowed key gives the mean over all values (else zero)
  KeySplits keys_as_split;
  SlotView slots;       // where defined, the kernel splits what is visible there
  int splits;           // that the launch has blocks for
  int split_unit;       // what the keys of a split are a multiple of
  float* partial;       // [z, split, row, head_dim], z = batch * kv_heads
  float* state;         // [z, split, row, 2]: maximum, sum of weights
  unsigned* tickets;    // [z, chunk of rows]; null: there is one split
  bool combined_apart;  // by a kernel of its own

  __device__ KeySplits key_splits() const {
    if (!slots.past) return keys_as_split;
    const VisibleSlots seen = slots.visible();
    return split_keys(seen.first, seen.last, splits, split_unit);
  }
};

// The weight of a score against a maximum: 0 where nothing was seen.
__device__ inline float weight_of(float score, float maximum) {
  return approximate_exp2(score - (maximum == -INFINITY ? 0.0f : maximum));
}

// tanh to a relative error of 2^-20. Beyond 4 it is 1 - 2 e^-2|x|, but for the square of that.
template <class T>
__device__ inline float cap_tanh(float x) {
  const float tail = fused_multiply_add(-2.0f, approximate_exp(-2.0f * fabsf(x)), 1.0f);
  return fabsf(x) < 4.0f ? hyperbolic_tangent<T>(x) : copysignf(tail, x);
}

// kChannels elements as registers hold them: halves that move one by one cost instructions.
using Words = Vector<uint32_t, kChannels / 2>;

template <class T>
__device__ inline float channel_of(const Words& words, int i) {
  const uint32_t word = words[i / 2];
  if constexpr (std::is_same_v<T, BFloat16>) {
    return __builtin_bit_cast(float, i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  } else {
    return to_float(T{static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)});
  }
}

// Which lane of a group does what. A step of a group has kValues (row, key) scores, counted
// row * kAhead + key; after transposed_sum a lane holds kHeld neighbours of them, all of one row.
template <int Lanes, int R>
struct Shares {
  static constexpr int kAhead = kAheadOf<R>, kValues = R * kAhead;
  static constexpr int kHeld = kValues > Lanes ? kValues / Lanes : 1;
  static constexpr int kCopies = Lanes > kValues ? Lanes / kValues : 1;  // lanes that hold the same
  static constexpr int kRowLanes = Lanes / R;                            // that hold a row's scores
  static_assert(kHeld <= kAhead && kRowLanes * R == Lanes);
  static __device__ int row(int lane) { return lane % Lanes / kRowLanes; }
  static __device__ int key(int lane) { return lane % kRowLanes / kCopies * kHeld; }
};

// Sums each of N values over the lanes of a group. Lanes exchange halves of what they still have:
// lane i ends with the sums from i * N / Lanes on, in the first elements.
template <int Wave, int Lanes, int N>
__device__ inline void transposed_sum(float* values, int lane) {
  if constexpr (Lanes > 1) {
    constexpr int kHalf = N > 1 ? N / 2 : 1;
    if constexpr (N == 1) {
      values[0] += shuffle_xor<Wave>(values[0], Lanes / 2);
    } else {
      const bool upper = (lane & Lanes / 2) != 0;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float sent = upper ? values[i] : values[kHalf + i];
        const float kept = upper ? values[kHalf + i] : values[i];
        values[i] = kept + shuffle_xor<Wave>(sent, Lanes / 2);
      }
    }
    transposed_sum<Wave, Lanes / 2, kHalf>(values, lane);
  }
}

// One lane group: its view of the block's keys, kChannels per lane, and what it knows of R rows.
template <class T, int Wave, int Lanes, int R>
struct KeyGroup {
  using Share = Shares<Lanes, R>;
  static constexpr int kGroups = Wave / Lanes;  // of a wave
  static constexpr int kAhead = Share::kAhead, kValues = Share::kValues, kHeld = Share::kHeld;
  static constexpr int kStep = kThreads / Lanes * kAhead;  // keys that the block takes at a time

  const DecodeOperands<T>& p;
  const uint8_t* key_valid;  // of this batch row; null: all are
  int lane;                  // of the wave
  int last;
  bool active;  // whether the lane has channels
  int slot;     // of the token of the lane's row, counted in keys
  float query[R][kChannels];
  float out[R][kChannels];
  // Of the lane's row: what weights are relative to, within kSlack of the largest score so far,
  // and the sum of the weights that the lane held.
  float best, total;

  // Scores are powers of two: weights up to 2^kSlack spare the outputs most changes of scale.
  static constexpr float kSlack = 8;

  // The next step's keys: key, key + kGroups, ... Beyond the last one, the words stay as they are.
  __device__ void load(Words (&to)[kAhead], const T*& from, int64_t stride, int key) const {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (active && key + j * kGroups < last) {
        to[j] = load_vector<kChannels / 2>(
            reinterpret_cast<const uint32_t*>(from + j * kGroups * stride));
      }
    }
    from += kStep * stride;
  }

  __device__ bool allows(int key) const {
    if (key >= last || (key_valid && key_valid[key] == 0)) return false;
    if (p.one_token) return true;
    return !(p.mask.causal && key > slot) && !(p.window && slot - key >= p.window);
  }

  // The lane's part of the scores.
  __device__ void multiply(float (&scores)[kValues], const Words (&keys)[kAhead]) const {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int r = 0; r < R; ++r) scores[r * kAhead + j] = 0;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float x = channel_of<T>(keys[j], i);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          float& score = scores[r * kAhead + j];
          score = fused_multiply_add(query[r][i], x, score);
        }
      }
    }
  }

  // The lane's share of the dot products becomes that of the weights.
  __device__ void weigh(float (&scores)[kValues], const bool (&allowed)[kHeld]) {
    float now = best;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      float x = scores[h] * p.scale;
      if (p.cap != 0) x = p.cap * cap_tanh<T>(x);
      scores[h] = allowed[h] ? x : -INFINITY;
      now = fmaxf(now, scores[h]);
    }
#pragma unroll
    for (int mask = Share::kCopies; mask < Share::kRowLanes; mask *= 2) {
      now = fmaxf(now, shuffle_xor<Wave>(now, mask));
    }
    const bool grown = now > best + kSlack;
    if (ballot<Wave>(grown) != 0) rescale(grown ? now : best);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      scores[h] = weight_of(scores[h], best);
      total += scores[h];
    }
  }

  __device__ void rescale(float now) {
    const float factor = weight_of(best, now);
    best = now;
    total *= factor;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float of_row = shuffle<Wave>(factor, lane / Lanes * Lanes + r * Share::kRowLanes);
#pragma unroll
      for (int i = 0; i < kChannels; ++i) out[r][i] *= of_row;
    }
  }

  __device__ void add(const float (&weights)[kValues], const Words (&values)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      float weight[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int from = r * Share::kRowLanes + j / kHeld * Share::kCopies;
        weight[r] = shuffle<Wave>(weights[j % kHeld], lane / Lanes * Lanes + from);
      }
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float value = channel_of<T>(values[j], i);
#pragma unroll
        for (int r = 0; r < R; ++r) out[r][i] = fused_multiply_add(weight[r], value, out[r][i]);
      }
    }
  }

  // Keys from start on; the next ones are read as soon as registers are free.
  __device__ void attend(const T* k, const T* v, int start) {
    const int64_t k_stride = p.k_stride[2], v_stride = p.v_stride[2];
    k += start * k_stride;
    v += start * v_stride;
    Words keys[kAhead]{}, values[kAhead]{};
    load(keys, k, k_stride, start);
    load(values, v, v_stride, start);
    // Lanes of a wave shuffle together: the loop's length must not depend on the lane.
    for (int key = start; key - lane / Lanes < last; key += kStep) {
      bool allowed[kHeld];
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        allowed[h] = allows(key + (Share::key(lane) + h) * kGroups);
      }
      float weights[kValues];
      multiply(weights, keys);
      transposed_sum<Wave, Lanes, kValues>(weights, lane);
      load(keys, k, k_stride, key + kStep);
      weigh(weights, allowed);
      add(weights, values);
      load(values, v, v_stride, key + kStep);
    }
#pragma unroll
    for (int mask = Share::kCopies; mask < Share::kRowLanes; mask *= 2) {
      total += shuffle_xor<Wave>(total, mask);
    }
  }
};

// What the lane groups of a block found.
template <int Lanes, int R>
struct GroupStates {
  static constexpr int kGroups = kThreads / Lanes;
  float out[kGroups][R][Lanes * kChannels];
  float best[kGroups][R], total[kGroups][R];
};

// Lane groups of the block become one, in order, a thread per row and channel.
template <class T, int Wave, int Lanes, int R>
__device__ inline void merge_groups(const DecodeOperands<T>& p,
                                    const KeyGroup<T, Wave, Lanes, R>& s, int64_t row0,
                                    int64_t slice) {
  using States = GroupStates<Lanes, R>;
  States& groups = *dynamic_shared<States>();
  const int thread = static_cast<int>(thread_index().x), group = thread / Lanes;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float* out = groups.out[group][r] + thread % Lanes * kChannels;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) out[i] = s.out[r][i];
  }
  if (thread % Shares<Lanes, R>::kRowLanes == 0) {
    groups.best[group][Shares<Lanes, R>::row(thread)] = s.best;
    groups.total[group][Shares<Lanes, R>::row(thread)] = s.total;
  }
  block_barrier();
  constexpr int kWidth = Lanes * kChannels;
  for (int i = thread; i < R * kWidth; i += kThreads) {
    const int r = i / kWidth, channel = i % kWidth;
    if (row0 + r >= p.rows || channel >= p.head_dim) continue;
    float best = -INFINITY, total = 0, out = 0;
#pragma unroll
    for (int g = 0; g < States::kGroups; ++g) best = fmaxf(best, groups.best[g][r]);
#pragma unroll
    for (int g = 0; g < States::kGroups; ++g) {
      const float factor = weight_of(groups.best[g][r], best);
      total = fused_multiply_add(factor, groups.total[g][r], total);
      out = fused_multiply_add(factor, groups.out[g][r][channel], out);
    }
    const int64_t at = slice * p.rows + row0 + r;
    p.partial[at * p.head_dim + channel] = out;
    if (channel == 0) {
      p.state[2 * at] = best;
      p.state[2 * at + 1] = total;
    }
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR::decode
