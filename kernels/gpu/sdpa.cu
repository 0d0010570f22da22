// Attention in one go (online softmax: Milakov and Gimelshein 2018; tiles: Dao et al. 2022),
// rounded once.
//
// The rows of a block are 16 (query token, head of the group) pairs that share one key-value head,
// so that grouped heads read K and V once. 128 threads: eight per row. Keys pass through shared
// memory in tiles of 32; a thread scores four of them for its row and owns every eighth channel of
// the output. T x S scores never exist. Few rows over many keys are split along the keys:
// partial sums go to scratch, and sdpa_combine adds them in order. head_dim and v_head_dim
// up to 256.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/slots.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kRows = 16, kPerRow = 8, kThreads = kRows * kPerRow, kKeys = 32;
constexpr int kScores = kKeys / kPerRow;  // keys of a tile that a thread scores
constexpr int kMostSplits = 64;
constexpr int64_t kKeysPerSplit = 256;  // fewer are not worth a second pass

template <class T>
struct SdpaOperands {
  T* out;
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride[3], k_stride[3], v_stride[3];  // batch, head, token
  int64_t out_stride[3];                          // batch, token, head
  int64_t heads, kv_heads, group, queries, keys, head_dim, v_head_dim, batch;
  float scale, softcap;  // softcap 0: none
  MaskView mask;
  bool uniform;  // a row without an allowed key gives the mean over all values (else zero)
  float lowest;  // additive masks at or below it mean "not allowed"
  // Split along keys: partial sums [z, split, row, v_head_dim], and (maximum, total) of each.
  int64_t splits, keys_per_split;
  float* partial;
  float* state;
  SlotView slots;  // where defined, the keys are what is visible there
};

// Keys from slot `first` on, and how they are split.
struct KeySplits {
  int64_t first, count, splits, keys_per_split;
};

__host__ __device__ inline KeySplits split_keys(int64_t first, int64_t keys, int64_t most) {
  const int64_t pieces = (keys + kKeysPerSplit - 1) / kKeysPerSplit;
  const int64_t splits = most < pieces ? most : pieces;
  if (splits <= 1) return {first, keys, 1, keys};
  const int64_t share = (keys + splits - 1) / splits,
                per_split = (share + kKeys - 1) / kKeys * kKeys;
  return {first, keys, (keys + per_split - 1) / per_split, per_split};
}

template <class T>
__device__ inline KeySplits key_splits(const SdpaOperands<T>& p) {
  if (!p.slots.past) return {0, p.keys, p.splits, p.keys_per_split};
  const VisibleSlots seen = p.slots.visible();
  return split_keys(seen.first, seen.last - seen.first, p.splits);
}

template <class T, int Dim>
struct SdpaTiles {
  float q[kRows][Dim + 1];
  T kv[kKeys][Dim + 16 / sizeof(T)];
  float p[kRows][kKeys + 1];
};

// Keys [key0, key0 + kKeys) of one head into shared memory; beyond `last`, zeros.
template <class T, int Dim>
__device__ inline void load_tile(T (&tile)[kKeys][Dim + 16 / sizeof(T)], const T* from,
                                 int64_t stride, int64_t key0, int64_t last, int64_t head_dim,
                                 bool vectors) {
  constexpr int N = kVector<T>;
  const int t = static_cast<int>(thread_index().x);
  if (vectors) {
    const int per_row = static_cast<int>(head_dim) / N;
    for (int i = t; i < kKeys * per_row; i += kThreads) {
      const int row = i / per_row, column = i % per_row * N;
      Vector<T, N> x{};
      if (key0 + row < last) x = load_vector<N>(from + (key0 + row) * stride + column);
      store_vector(&tile[row][column], x);
    }
    return;
  }
  for (int i = t; i < kKeys * static_cast<int>(head_dim); i += kThreads) {
    const int row = i / static_cast<int>(head_dim), column = i % static_cast<int>(head_dim);
    tile[row][column] =
        key0 + row < last ? from[(key0 + row) * stride + column] : from_float<T>(0.0f);
  }
}

// Sum or maximum over the eight neighbouring threads of a row.
template <int Wave, class F>
__device__ inline float over_row(float v, F f) {
#pragma unroll
  for (int mask = kPerRow / 2; mask > 0; mask /= 2) v = f(v, shuffle_xor<Wave>(v, mask));
  return v;
}

// The rows of one head that a block computes, and the row that a thread has an eighth of.
struct TilePlace {
  int row, part;
  int64_t tile, split, z, b, kv_head;  // of the block; z counts batch rows and key heads
  int64_t rows, packed, token, head;   // a head's rows: queries of all heads that share its keys
  bool live;                           // false for what is left over of the last tile
};

template <class T>
__device__ inline TilePlace tile_place(const SdpaOperands<T>& p) {
  TilePlace at{};
  const int thread = static_cast<int>(thread_index().x);
  at.row = thread / kPerRow;
  at.part = thread % kPerRow;
  at.rows = p.group * p.queries;
  const int64_t row_tiles = (at.rows + kRows - 1) / kRows;
  // Later rows see more keys: the heavy tiles go first.
  at.tile = row_tiles - 1 - block_index().x % row_tiles;
  const int64_t rest = block_index().x / row_tiles;
  at.split = rest % p.splits;
  at.z = rest / p.splits;
  at.kv_head = at.z % p.kv_heads;
  at.b = at.z / p.kv_heads;
  at.packed = at.tile * kRows + at.row;
  at.live = at.packed < at.rows;
  at.token = at.live ? at.packed / p.group : p.queries - 1;
  at.head = at.kv_head * p.group + (at.live ? at.packed % p.group : 0);
  return at;
}

// The tile's queries as floats into shared memory; beyond the last row, zeros.
template <class T, int Dim>
__device__ inline void load_queries(float (&tile)[kRows][Dim + 1], const SdpaOperands<T>& p,
                                    const TilePlace& at) {
  const int head_dim = static_cast<int>(p.head_dim);
  for (int i = static_cast<int>(thread_index().x); i < kRows * head_dim; i += kThreads) {
    const int r = i / head_dim, d = i % head_dim;
    const int64_t packed = at.tile * kRows + r;
    float x = 0;
    if (packed < at.rows) {
      const int64_t h = at.kv_head * p.group + packed % p.group, t = packed / p.group;
      x = to_float(p.q[at.b * p.q_stride[0] + h * p.q_stride[1] + t * p.q_stride[2] + d]);
    }
    tile[r][d] = x;
  }
}

struct TileKeys {
  int64_t first, last;  // [first, last)
};

// The keys that some row of the tile may see, of this split.
template <class T>
__device__ inline TileKeys tile_keys(const SdpaOperands<T>& p, const TilePlace& at,
                                     const KeySplits& keys) {
  const int64_t end = at.tile * kRows + kRows;
  const int64_t last_row = end <= at.rows ? end - 1 : at.rows - 1;
  TileKeys seen{p.mask.first_key(at.tile * kRows / p.group),
                p.mask.last_key(last_row / p.group, keys.count)};
  const int64_t split_first = at.split * keys.keys_per_split;
  const int64_t split_last = split_first + keys.keys_per_split;
  if (seen.first < split_first) seen.first = split_first;
  if (seen.last > split_last) seen.last = split_last;
  return seen;
}

// What the softmax sees of q k^T: scaled, capped, masked; -INFINITY where the key is not allowed.
template <class T>
__device__ inline float score_of(const SdpaOperands<T>& p, const TilePlace& at, float dot,
                                 int64_t key, bool in_range) {
  dot *= p.scale;
  if (p.softcap > 0) dot = p.softcap * tanhf(dot / p.softcap);
  bool allowed = at.live && in_range && p.mask.allows(at.b, at.head, at.token, key);
  if (allowed && p.mask.explicit_additive) {
    const float m = to_float(static_cast<const T*>(
        p.mask.explicit_additive)[p.mask.explicit_at(at.b, at.head, at.token, key)]);
    allowed = !(m <= p.lowest);
    dot += m;
  }
  return allowed ? dot : -INFINITY;
}

// own += weights of the row times the tile's values.
template <class T, int Dim, int kOwn>
__device__ inline void accumulate(float (&own)[kOwn], const SdpaTiles<T, Dim>& tiles, int row,
                                  int part, int64_t v_head_dim) {
  for (int s = 0; s < kKeys; ++s) {
    const float weight = tiles.p[row][s];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int d = part + i * kPerRow;
      if (d < v_head_dim) own[i] = fused_multiply_add(weight, to_float(tiles.kv[s][d]), own[i]);
    }
  }
}

// What a row without an allowed key gives: the mean of all values, or zero.
template <class T>
__device__ inline float without_keys(const SdpaOperands<T>& p, const T* v, int64_t count,
                                     int64_t d) {
  float y = 0;
  if (!p.uniform) return y;
  for (int64_t s = 0; s < count; ++s) y += to_float(v[s * p.v_stride[2] + d]);
  return y / static_cast<float>(count);
}

template <class T, int Wave, int Dim>
__global__ void __launch_bounds__(kThreads) sdpa_tiles(SdpaOperands<T> p, bool vectors) {
  wait_for_previous_kernel();
  constexpr int kOwn = Dim / kPerRow;
  using Tiles = SdpaTiles<T, Dim>;
  Tiles& tiles = *dynamic_shared<Tiles>();
  const TilePlace at = tile_place(p);
  const KeySplits keys = key_splits(p);
  if (at.split >= keys.splits) return;
  load_queries<T, Dim>(tiles.q, p, at);
  const TileKeys seen = tile_keys(p, at, keys);
  const T* k = p.k + at.b * p.k_stride[0] + at.kv_head * p.k_stride[1] + keys.first * p.k_stride[2];
  const T* v = p.v + at.b * p.v_stride[0] + at.kv_head * p.v_stride[1] + keys.first * p.v_stride[2];

  float best = -INFINITY, total = 0, own[kOwn] = {};
  for (int64_t key0 = seen.first / kKeys * kKeys; key0 < seen.last; key0 += kKeys) {
    block_barrier();  // the values of the previous tile have been used; q has been written
    load_tile<T, Dim>(tiles.kv, k, p.k_stride[2], key0, seen.last, p.head_dim, vectors);
    block_barrier();
    float score[kScores], largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const int s = at.part + j * kPerRow;
      float dot = 0;
      for (int d = 0; d < p.head_dim; ++d) {
        dot = fused_multiply_add(tiles.q[at.row][d], to_float(tiles.kv[s][d]), dot);
      }
      const int64_t key = key0 + s;
      score[j] = score_of(p, at, dot, key, key >= seen.first && key < seen.last);
      largest = score[j] > largest || score[j] != score[j] ? score[j] : largest;
    }
    largest = over_row<Wave>(largest, [](float x, float y) { return y > x || y != y ? y : x; });
    const float now = largest > best || largest != largest ? largest : best;
    const float rescale = best == -INFINITY ? 0.0f : expf(best - now);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const float weight = score[j] == -INFINITY ? 0.0f : expf(score[j] - now);
      tiles.p[at.row][at.part + j * kPerRow] = weight;
      sum += weight;
    }
    total = total * rescale + over_row<Wave>(sum, [](float x, float y) { return x + y; });
    best = now;
    block_barrier();  // keys have been used, weights are written
    load_tile<T, Dim>(tiles.kv, v, p.v_stride[2], key0, seen.last, p.v_head_dim, vectors);
    block_barrier();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] *= rescale;
    accumulate<T, Dim>(own, tiles, at.row, at.part, p.v_head_dim);
  }
  if (!at.live) return;

  if (p.splits > 1) {
    const int64_t state = (at.z * p.splits + at.split) * at.rows + at.packed;
    if (at.part == 0) {
      p.state[2 * state] = best;
      p.state[2 * state + 1] = total;
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int d = at.part + i * kPerRow;
      if (d < p.v_head_dim) p.partial[state * p.v_head_dim + d] = own[i];
    }
    return;
  }
  T* out = p.out + at.b * p.out_stride[0] + at.token * p.out_stride[1] + at.head * p.out_stride[2];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int d = at.part + i * kPerRow;
    if (d >= p.v_head_dim) continue;
    const float y = best == -INFINITY ? without_keys(p, v, keys.count, d) : own[i] / total;
    out[d] = from_float<T>(y);
  }
}

// One thread per output element: the partial sums of its row, in order of the splits.
template <class T>
__global__ void __launch_bounds__(256) sdpa_combine(SdpaOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t rows = p.group * p.queries, total = p.batch * p.kv_heads * rows * p.v_head_dim;
  const int64_t step = int64_t{256} * grid_size().x;
  for (int64_t i = int64_t{256} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t d = i % p.v_head_dim, packed = i / p.v_head_dim % rows;
    const int64_t z = i / p.v_head_dim / rows, kv_head = z % p.kv_heads, b = z / p.kv_heads;
    const KeySplits keys = key_splits(p);
    float best = -INFINITY;
    for (int64_t s = 0; s < keys.splits; ++s) {
      const float m = p.state[2 * ((z * p.splits + s) * rows + packed)];
      best = m > best || m != m ? m : best;
    }
    float sum = 0, weight = 0;
    for (int64_t s = 0; s < keys.splits; ++s) {
      const int64_t at = (z * p.splits + s) * rows + packed;
      const float m = p.state[2 * at];
      if (m == -INFINITY) continue;
      const float factor = expf(m - best);
      weight += factor * p.state[2 * at + 1];
      sum += factor * p.partial[at * p.v_head_dim + d];
    }
    const T* v = p.v + b * p.v_stride[0] + kv_head * p.v_stride[1] + keys.first * p.v_stride[2];
    const float y = best == -INFINITY ? without_keys(p, v, keys.count, d) : sum / weight;
    const int64_t token = packed / p.group, head = kv_head * p.group + packed % p.group;
    p.out[b * p.out_stride[0] + token * p.out_stride[1] + head * p.out_stride[2] + d] =
        from_float<T>(y);
  }
}

template <class T>
SdpaOperands<T> operands(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionMask& mask, const SdpaParams& params) {
  SdpaOperands<T> p{};
  p.out = out.data<T>();
  p.q = q.data<T>();
  p.k = k.data<T>();
  p.v = v.data<T>();
  for (int axis = 0; axis < 3; ++axis) {
    p.q_stride[axis] = q.stride(axis);
    p.k_stride[axis] = k.stride(axis);
    p.v_stride[axis] = v.stride(axis);
    p.out_stride[axis] = out.stride(axis);
  }
  p.batch = q.dim(0);
  p.heads = q.dim(1);
  p.kv_heads = k.dim(1);
  p.group = p.heads / p.kv_heads;
  p.queries = q.dim(2);
  p.keys = k.dim(2);
  p.head_dim = q.dim(3);
  p.v_head_dim = v.dim(3);
  p.scale = static_cast<float>(params.scale);
  p.softcap = static_cast<float>(params.softcap.value_or(0));
  p.slots = slot_view(mask, k.dim(2));
  p.mask = mask_view(mask);
  p.uniform = mask.fully_masked == FullyMasked::uniform;
  p.lowest = static_cast<float>(-info(q.dtype()).max);
  p.splits = 1;
  p.keys_per_split = p.keys;
  return p;
}

// The smallest head_dim that the kernel is compiled for, holds `head_dim` and may run; 0: none.
int64_t choose_dim(GpuOps& ops, std::string_view kernel, int64_t head_dim) {
  constexpr std::pair<int64_t, std::string_view> kDims[] = {
      {32, "d32"}, {64, "d64"}, {96, "d96"}, {128, "d128"}, {256, "d256"}};
  for (const auto& [dim, variant] : kDims) {
    if (head_dim <= dim && ops.choose(kernel, variant)) return dim;
  }
  return 0;
}

}  // namespace

void GpuOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMask& mask, const SdpaParams& params) {
  if (out.numel() == 0) return;
  if (library_sdpa(out, q, k, v, mask, params) || decode_sdpa(out, q, k, v, mask, params)) return;
  const int64_t head_dim = q.dim(3) > v.dim(3) ? q.dim(3) : v.dim(3);
  require<Unsupported>(head_dim <= 256, "sdpa", "head_dim ", head_dim,
                       " is above 256, the most of the fused kernel; run it with --no-fuse");
  with_storage("sdpa", q.dtype(), [&]<class T>(T) {
    Arena::Scope scope(arena());
    SdpaOperands<T> p = operands<T>(out, q, k, v, mask, params);
    const int64_t rows = p.group * p.queries, row_tiles = (rows + kRows - 1) / kRows;
    const int64_t blocks = row_tiles * p.batch * p.kv_heads;
    int64_t splits = blocks < multiprocessors() ? 2 * multiprocessors() / blocks : 1;
    if (choice().forced()) splits = kMostSplits;
    splits = std::min<int64_t>(splits, kMostSplits);
    const KeySplits found =
        split_keys(0, p.slots.defined() ? p.slots.most_visible() : p.keys, splits);
    p.keys_per_split = found.keys_per_split;
    // Fewer keys may be visible than can be, and be split otherwise.
    p.splits = p.slots.defined()
                   ? std::min(splits, (found.count + kKeysPerSplit - 1) / kKeysPerSplit)
                   : found.splits;
    int64_t dim = p.splits > 1 ? choose_dim(*this, "split_keys", head_dim) : 0;
    if (dim == 0) {
      p.splits = 1;
      p.keys_per_split = p.keys;
      dim = choose_dim(*this, "tiles", head_dim);
      if (dim == 0) choice().exhausted();
    }
    if (p.splits > 1) {
      const int64_t states = p.batch * p.kv_heads * p.splits * rows;
      p.partial = arena().take(DType::f32, Shape({states, p.v_head_dim})).data<float>();
      p.state = arena().take(DType::f32, Shape({states, int64_t{2}})).data<float>();
    }
    const bool vectors = rows_are_vectors(k) && rows_are_vectors(v);
    with_wave(stream(), [&]<int Wave>() {
      const auto go = [&]<int Dim>() {
        launch_overlapped<sdpa_tiles<T, Wave, Dim>>("sdpa", {grid_for(blocks * p.splits, 1)},
                                                    {kThreads}, sizeof(SdpaTiles<T, Dim>), stream(),
                                                    p, vectors);
      };
      switch (dim) {
        case 32: return go.template operator()<32>();
        case 64: return go.template operator()<64>();
        case 96: return go.template operator()<96>();
        case 128: return go.template operator()<128>();
        default: return go.template operator()<256>();
      }
    });
    if (p.splits > 1) {
      launch_overlapped<sdpa_combine<T>>("sdpa_combine", {grid_for(out.numel(), 256)}, {256}, 0,
                                         stream(), p);
    }
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
