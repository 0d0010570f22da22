// What a block of sdpa_decode does with its keys: the softmax of a few rows, in registers.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/gpu/mask.h"

namespace plumb::PLUMB_GPU_VENDOR::decode {

inline constexpr int kThreads = 128, kChannels = 8, kMostRows = 8;
// As many keys as leave room in registers for the rows.
template <int R>
inline constexpr int kAheadOf = R < kMostRows ? 4 : 2;

template <class T>
struct DecodeOperands {
  T* out;
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride[3], k_stride[3], v_stride[3];  // batch, head, token
  int64_t out_stride[3];                          // batch, token, head
  int64_t kv_heads, group, rows, keys, width;     // rows: group * query tokens
  // Scores are in powers of two: dot * scale, or cap * tanh(dot * scale) where cap is not 0.
  float scale, cap;
  MaskView mask;
  int window;      // 0: none
  bool one_token;  // [first, last) is what every row may see, but for key_valid
  bool uniform;    // a row without an allowed key gives the mean over all values (else zero)
  int first, last, splits, keys_per_split;  // splits of keys [first, last)
  float* partial;                           // [z, split, row, width], z = batch * kv_heads
  float* state;                             // [z, split, row, 2]: maximum, sum of weights
};

// What a group of lanes knows of R rows: kChannels of each output, and the softmax so far.
template <int R>
struct RowStates {
  float out[R][kChannels], best[R], total[R];
};

// The weight of a score against a maximum: 0 where nothing was seen.
__device__ inline float weight_of(float score, float maximum) {
  return approximate_exp2(score - (maximum == -INFINITY ? 0.0f : maximum));
}

// Adds row r of another state.
template <int R>
__device__ inline void merge(RowStates<R>& s, int r, float best, float total,
                             const float (&out)[kChannels]) {
  const float now = fmaxf(s.best[r], best);
  const float ours = weight_of(s.best[r], now), theirs = weight_of(best, now);
  s.best[r] = now;
  s.total[r] = s.total[r] * ours + total * theirs;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) s.out[r][i] = s.out[r][i] * ours + out[i] * theirs;
}

// One lane group's view of the block's keys.
template <class T, int Wave, int Lanes, int R>
struct KeyGroup {
  using Channels = Vector<T, kChannels>;
  static constexpr int kGroups = Wave / Lanes;  // of a wave
  static constexpr int kAhead = kAheadOf<R>;

  const DecodeOperands<T>& p;
  const T* k;  // of this lane's channels
  const T* v;
  const uint8_t* key_valid;  // of this batch row; null: all are
  int first, last;
  bool active;   // whether the lane has channels; those that have none read the first ones
  int slots[R];  // of the rows' tokens, counted in keys
  float query[R][kChannels];

  __device__ bool allows(int r, int key) const {
    if (p.mask.causal && key > slots[r]) return false;
    return !p.window || slots[r] - key < p.window;
  }

  // Keys key, key + kGroups, ... of this group. Beyond the last one, that one again, unseen.
  __device__ void attend(RowStates<R>& s, int key) const {
    Channels keys[kAhead], values[kAhead];
    bool valid[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int wanted = key + j * kGroups, at = wanted < last ? wanted : last - 1;
      keys[j] = load_vector<kChannels>(k + at * p.k_stride[2]);
      values[j] = load_vector<kChannels>(v + at * p.v_stride[2]);
      valid[j] = wanted < last && (!key_valid || key_valid[at] != 0);
    }
    float weights[kAhead][R];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      score(weights[j], keys[j], key + j * kGroups, valid[j]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float now = s.best[r];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) now = fmaxf(now, weights[j][r]);
      const float rescale = weight_of(s.best[r], now);
      s.best[r] = now;
      s.total[r] *= rescale;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) s.out[r][i] *= rescale;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        weights[j][r] = weight_of(weights[j][r], now);
        s.total[r] += weights[j][r];
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float value = to_float(values[j][i]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          s.out[r][i] = fused_multiply_add(weights[j][r], value, s.out[r][i]);
        }
      }
    }
  }

  __device__ void score(float (&scores)[R], const Channels& channels, int key, bool valid) const {
#pragma unroll
    for (int r = 0; r < R; ++r) scores[r] = 0;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const float x = to_float(channels[i]);
#pragma unroll
      for (int r = 0; r < R; ++r) scores[r] = fused_multiply_add(query[r][i], x, scores[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (!active) scores[r] = 0;
#pragma unroll
      for (int mask = Lanes / 2; mask > 0; mask /= 2) {
        scores[r] += shuffle_xor<Wave>(scores[r], mask);
      }
      float x = scores[r] * p.scale;
      if (p.cap != 0) x = p.cap * tanhf(x);
      scores[r] = valid && (p.one_token || allows(r, key)) ? x : -INFINITY;
    }
  }
};

// Lane groups of a wave become one, in all of its lanes.
template <int Wave, int Lanes, int R>
__device__ inline void merge_groups(RowStates<R>& s) {
#pragma unroll
  for (int mask = Lanes; mask < Wave; mask *= 2) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float best = shuffle_xor<Wave>(s.best[r], mask);
      const float total = shuffle_xor<Wave>(s.total[r], mask);
      float out[kChannels];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) out[i] = shuffle_xor<Wave>(s.out[r][i], mask);
      merge(s, r, best, total, out);
    }
  }
}

template <int Wave, int Lanes, int R>
struct WaveStates {
  float out[kThreads / Wave][R][Lanes * kChannels];
  float best[kThreads / Wave][R], total[kThreads / Wave][R];
};

// Waves of the block become one, in order; the first wave writes.
template <class T, int Wave, int Lanes, int R>
__device__ inline void merge_waves(const DecodeOperands<T>& p, RowStates<R>& s, int64_t row0,
                                   int64_t slice) {
  auto& waves = *dynamic_shared<WaveStates<Wave, Lanes, R>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % Wave;
  const int wave = thread / Wave, channel = lane * kChannels;
  if (lane < Lanes) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      waves.best[wave][r] = s.best[r];
      waves.total[wave][r] = s.total[r];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) waves.out[wave][r][channel + i] = s.out[r][i];
    }
  }
  block_barrier();
  if (wave != 0 || lane >= Lanes) return;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    for (int w = 1; w < kThreads / Wave; ++w) {
      float out[kChannels];
#pragma unroll
      for (int i = 0; i < kChannels; ++i) out[i] = waves.out[w][r][channel + i];
      merge(s, r, waves.best[w][r], waves.total[w][r], out);
    }
    if (row0 + r >= p.rows) continue;
    const int64_t at = slice * p.rows + row0 + r;
    if (lane == 0) {
      p.state[2 * at] = s.best[r];
      p.state[2 * at + 1] = s.total[r];
    }
    if (channel >= p.width) continue;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) p.partial[at * p.width + channel + i] = s.out[r][i];
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR::decode
