// Attention of one query token on Hopper GPUs, bf16: bound by reading K and V, so the copy engine
// (TMA) keeps all of the shared memory on its way.
//
// A block, alone on its multiprocessor, has one split of the keys of a key-value head and up to
// eight query heads that share it. Each warp has a ring of its own (sdpa_decode_sm90_ring.cuh) and
// takes every kWarps-th tile of 16 keys: S^T = K Q^T and O^T = V^T P^T, so that keys and channels
// are the 16 rows of a product and the query heads its 8 columns. Warps are added up in order, then
// the splits, by a kernel of their own (kernels/gpu/sdpa_decode_splits.h): the same shape gives the
// same bits. Rounds once, at the output; weights keep 16 bits (sdpa_decode_sm90_softmax.cuh).
#include "kernels/cuda/sdpa_decode_sm90.h"
#include "kernels/cuda/sdpa_decode_sm90_ring.cuh"
#include "kernels/cuda/sdpa_decode_sm90_softmax.cuh"
#include "kernels/cuda/sdpa_sm90.h"
#include "kernels/cuda/sm90_warp_products.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/sdpa_decode_operands.h"
#include "kernels/gpu/sdpa_decode_splits.h"

namespace plumb::cuda::sm90 {
namespace {

using Operands = decode::DecodeOperands<BFloat16>;
using decode::KeySplits;

constexpr int kMostRows = 8;

template <class Tiling, int R>
struct WarpStates {
  float best[Tiling::kWarps][R], total[Tiling::kWarps][R];
};

// What a warp does with its tiles.
template <class Tiling, int R>
struct WarpRows {
  using Softmax = DecodeSoftmax<R>;
  static constexpr int kSteps = Tiling::kHeadDim / 16, kOperands = Softmax::kOperands;

  const Operands& p;
  const int lane, last;
  Softmax softmax{lane};
  uint32_t query[kSteps][2];
  float out[kOperands][kSteps][4] = {};

  // Column lane / 4 of Q^T; rows that there are not repeat the last.
  __device__ __forceinline__ void load_query(const BFloat16* from) {
    const int row = lane / 4 % R, there = static_cast<int>(p.rows) - 1;
    from += min(row, there) * p.q_stride[1];
    const auto* pairs = reinterpret_cast<const uint32_t*>(from) + lane % 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      query[s][0] = pairs[8 * s];
      query[s][1] = pairs[8 * s + 4];
    }
  }

  // The address of the lane's 16 bytes of a block of 16 rows by 16 columns in a swizzled tile.
  static __device__ __forceinline__ uint32_t place(uint32_t tile, int block, int row, int half) {
    const int chunk = block % 4 * 2 + half;
    return tile + block / 4 * Tiling::kPanelBytes + row * Tiling::kRowBytes +
           ((chunk ^ (row & 7)) << 4);
  }

  __device__ __forceinline__ void multiply_keys(float (&scores)[4], const char* keys) const {
    const uint32_t tile = shared_address(keys);
    float sums[2][4] = {};  // products that need not wait for each other
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t block[4];
      load_block(block, place(tile, s, lane % 16, lane / 16));
      multiply_in_warp(sums[s % 2], block, query[s]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = sums[0][i] + sums[1][i];
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int o = 0; o < kOperands; ++o) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[o][s][i] *= softmax.factor[i % 2];
      }
    }
  }

  // Slots behind the last key hold anything, and 0 * NaN would count. No copy follows into such a
  // tile: it is the warp's last.
  __device__ __forceinline__ void clear_values(char* values, int key) const {
    constexpr int kChunks = Tiling::kHeadDim / 8;
    if (key + Tiling::kKeys <= last) return;
#pragma unroll 1
    for (int i = lane; i < Tiling::kKeys * kChunks; i += 32) {
      const int row = i % Tiling::kKeys, chunk = i / Tiling::kKeys;
      if (key + row < last) continue;
      *reinterpret_cast<uint4*>(values + chunk / 8 * Tiling::kPanelBytes + row * Tiling::kRowBytes +
                                chunk % 8 * 16) = uint4{0, 0, 0, 0};
    }
    __syncwarp();
  }

  __device__ __forceinline__ void add_values(const char* values,
                                             const uint32_t (&weights)[kOperands][2]) {
    const uint32_t tile = shared_address(values);
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t block[4];
      load_block_transposed(block, place(tile, s, row, half));
#pragma unroll
      for (int o = 0; o < kOperands; ++o) multiply_in_warp(out[o][s], block, weights[o]);
    }
  }

  __device__ __forceinline__ void attend(DecodeRing<Tiling>& ring) {
#pragma unroll 1
    for (int tile = 0; tile < ring.count; ++tile) {
      const int key = ring.key_of(tile);
      float x[4];
      ring.await_keys();
      multiply_keys(x, ring.keys());
      ring.replace_keys(tile, lane);
      softmax.score(p, x, key + lane / 4, last);
      if (softmax.raise_maximum(x)) rescale();
      uint32_t weights[kOperands][2];
      softmax.weigh(x, weights);
      ring.await_values();
      clear_values(ring.values(), key);
      add_values(ring.values(), weights);
      ring.replace_values(tile, lane);
      ring.advance();
    }
    softmax.finish();
  }

  // [R][head_dim] to where the warp's ring was.
  __device__ __forceinline__ void store(float* to, WarpStates<Tiling, R>& states, int warp) const {
    const int column = 2 * (lane % 4);
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float y = Softmax::joined(out[0][s][i], out[kOperands - 1][s][i]);
        const int channel = s * 16 + lane / 4 + i / 2 * 8;
        if (softmax.part == 0) to[(column + i % 2) * Tiling::kHeadDim + channel] = y;
      }
    }
    if (lane / 4 != 0 || softmax.part != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      states.best[warp][column + i] = softmax.best[i];
      states.total[warp][column + i] = softmax.total[i];
    }
  }
};

// Four channels of a row, from the sums over all keys.
__device__ __forceinline__ void write_output(const Operands& p, const KeySplits& keys, int z,
                                             int row, int channel, const float (&sum)[4],
                                             float total) {
  const int64_t batch = z / p.kv_heads, head = z % p.kv_heads * p.group + row;
  BFloat16* out = p.out + batch * p.out_stride[0] + head * p.out_stride[2] + channel;
  if (total == 0 && p.uniform) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      out[i] = from_float<BFloat16>(decode::uniform_mean(p, keys, z, channel + i));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = from_float<BFloat16>(total == 0 ? 0.0f : sum[i] / total);
}

// The warps become one, in order. The only split of a head gives its output at once.
template <class Tiling, int R>
__device__ __forceinline__ void merge_warps(const Operands& p, const KeySplits& keys, int slice,
                                            const char* rings,
                                            const WarpStates<Tiling, R>& states) {
  constexpr int kPieces = Tiling::kHeadDim / 4;
  const int rows = static_cast<int>(p.rows);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += Tiling::kThreads) {
    const int row = i / kPieces, channel = i % kPieces * 4;
    float best = -INFINITY, total = 0, sum[4] = {};
#pragma unroll
    for (int w = 0; w < Tiling::kWarps; ++w) best = fmaxf(best, states.best[w][row]);
#pragma unroll
    for (int w = 0; w < Tiling::kWarps; ++w) {
      const float factor = decode::weight_of(states.best[w][row], best);
      const auto* out = reinterpret_cast<const float*>(rings + w * Tiling::kRingBytes);
      const auto part = load_vector<4>(out + row * Tiling::kHeadDim + channel);
      total = fused_multiply_add(factor, states.total[w][row], total);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = fused_multiply_add(factor, part[j], sum[j]);
    }
    if (p.splits == 1) {
      write_output(p, keys, slice, row, channel, sum, total);
      continue;
    }
    const int64_t at = int64_t{slice} * rows + row;
    store_elements(p.partial + at * Tiling::kHeadDim + channel,
                   Vector<float, 4>{{sum[0], sum[1], sum[2], sum[3]}});
    if (channel == 0) {
      p.state[2 * at] = best;
      p.state[2 * at + 1] = total;
    }
  }
}

// Blocks: [z, split]. early: no kernel ahead writes k or v, whose first tiles are then on their way
// while those end.
template <class Tiling, int R>
__global__ void __launch_bounds__(Tiling::kThreads, 1)
    attend_one_token(const __grid_constant__ Operands p, const __grid_constant__ DecodeMaps maps,
                     bool early) {
  __shared__ typename DecodeRing<Tiling>::Barriers barriers[Tiling::kWarps];
  __shared__ WarpStates<Tiling, R> states;
  constexpr uint32_t kMask = Tiling::kAlignment - 1;
  char* rings = dynamic_shared<char>();
  rings += (Tiling::kAlignment - (shared_address(rings) & kMask)) & kMask;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = static_cast<int>(blockIdx.x), z = slice / p.splits, split = slice % p.splits;
  const int kv_head = z % static_cast<int>(p.kv_heads), batch = z / static_cast<int>(p.kv_heads);
  DecodeRing<Tiling> ring{maps, rings + warp * Tiling::kRingBytes, barriers[warp], kv_head, batch};
  let_next_kernel_begin();
  if (lane == 0) ring.start();
  if (!early) wait_for_kernels_before();
  const KeySplits keys = p.key_splits();
  const int first = keys.first + split * keys.keys_per_split + warp * Tiling::kKeys;
  const int last = min(keys.first + (split + 1) * keys.keys_per_split, keys.last);
  constexpr int kStep = Tiling::kWarps * Tiling::kKeys;
  ring.first = first;
  ring.count = first < last ? (last - first + kStep - 1) / kStep : 0;
  if (lane == 0) ring.fill();
  if (early) wait_for_kernels_before();
  if (split >= keys.splits) return;  // and there are no tiles
  __syncwarp();
  WarpRows<Tiling, R> rows{p, lane, last};
  rows.load_query(p.q + batch * p.q_stride[0] + kv_head * p.group * p.q_stride[1]);
  rows.attend(ring);
  rows.store(reinterpret_cast<float*>(ring.tiles), states, warp);
  merge_warps<Tiling, R>(p, keys, slice, rings, states);
}

// Whether it is faster. Kernels around it have little shared memory, and presumably a
// multiprocessor changes to the rings' size only once its blocks have ended: in models of 4096
// tokens an H200 loses more by it than it wins (gemma2-2b, 16 MiB of keys and values: a step
// at 73.7 % of a copy falls to 71.6; zamba2-1.2b, 64 MiB: 61.8 and 61.9).
bool pays(const Operands& p, int64_t slices) {
  constexpr int64_t kFewestBytes = int64_t{64} << 20;
  const int64_t keys =
      p.slots.defined() ? p.slots.most_visible() : p.keys_as_split.last - p.keys_as_split.first;
  return slices * keys * p.head_dim * 2 * size_of(DType::bf16) >= kFewestBytes;
}

bool takes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask) {
  const int64_t head_dim = q.dim(3);
  return q.dtype() == DType::bf16 && q.dim(2) == 1 && (head_dim == 128 || head_dim == 256) &&
         v.dim(3) == head_dim && q.dim(1) <= kMostRows * k.dim(1) &&
         !mask.explicit_mask.defined() && !mask.key_valid.defined() &&
         decode::slots_fit(mask, k.dim(2)) && rows_are_vectors(q) && is_hopper();
}

}  // namespace

bool decode_sdpa(GpuOps& ops, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionMask& mask, const SdpaParams& params) {
  if (!takes(q, k, v, mask)) return false;
  constexpr int kKeys = DecodeTiling<128>::kKeys;
  const auto k_map = make_row_map(k, kKeys), v_map = make_row_map(v, kKeys);
  const bool wide = q.dim(3) == 256;
  Operands p = decode::operands<BFloat16>(out, q, k, v, mask, params);
  const int64_t slices = q.dim(0) * p.kv_heads;
  if (!k_map || !v_map || !(ops.choice().forced() || pays(p, slices)) ||
      !ops.choose("sm90", wide ? "decode256" : "decode128")) {
    return false;
  }
  Arena::Scope scope(ops.arena());
  p.split_unit = kKeys;
  decode::split(p, slices, ops.multiprocessors());
  if (p.splits > 1) decode::take_partials(p, slices, ops.arena());
  // A position in the device's memory is written by a kernel, too.
  const bool early = !p.slots.defined() && ops.in_flight().settled(k) && ops.in_flight().settled(v);
  const Stream stream = ops.stream();
  const auto go = [&]<int HeadDim, int R>() {
    using Tiling = DecodeTiling<HeadDim>;
    launch_overlapped<attend_one_token<Tiling, R>>("sdpa", {grid_for(slices * p.splits, 1)},
                                                   {Tiling::kThreads}, Tiling::kSharedBytes, stream,
                                                   p, DecodeMaps{*k_map, *v_map}, early);
  };
  const auto with_rows = [&]<int HeadDim>() {
    if (p.rows <= 2) go.template operator()<HeadDim, 2>();
    else if (p.rows <= 4) go.template operator()<HeadDim, 4>();
    else go.template operator()<HeadDim, kMostRows>();
  };
  if (wide) with_rows.template operator()<256>();
  else with_rows.template operator()<128>();
  if (p.splits > 1) decode::combine_apart(p, slices, stream);
  return true;
}

}  // namespace plumb::cuda::sm90
