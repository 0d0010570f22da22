// Attention in one go (online softmax: Milakov and Gimelshein 2018; tiles: Dao et al. 2022),
// rounded once.
//
// The rows of a block are 16 (query token, head of the group) pairs that share one key-value head,
// so that grouped heads read K and V once. 128 threads: eight per row. Keys pass through shared
// memory in tiles of 32; a thread scores four of them for its row and owns every eighth channel of
// the output. T x S scores never exist. Few rows over many keys are split along the keys:
// partial sums go to scratch, and sdpa_combine adds them in order. head_dim and the values' width
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
  int64_t heads, kv_heads, group, queries, keys, width, value_width, batch;
  float scale, softcap;  // softcap 0: none
  MaskView mask;
  bool uniform;  // a row without an allowed key gives the mean over all values (else zero)
  float lowest;  // additive masks at or below it mean "not allowed"
  // Split along keys: partial sums [z, split, row, value_width], and (maximum, total) of each.
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
                                 int64_t stride, int64_t key0, int64_t last, int64_t width,
                                 bool vectors) {
  constexpr int N = kVector<T>;
  const int t = static_cast<int>(thread_index().x);
  if (vectors) {
    const int per_row = static_cast<int>(width) / N;
    for (int i = t; i < kKeys * per_row; i += kThreads) {
      const int row = i / per_row, column = i % per_row * N;
      Vector<T, N> x{};
      if (key0 + row < last) x = load_vector<N>(from + (key0 + row) * stride + column);
      store_vector(&tile[row][column], x);
    }
    return;
  }
  for (int i = t; i < kKeys * static_cast<int>(width); i += kThreads) {
    const int row = i / static_cast<int>(width), column = i % static_cast<int>(width);
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

template <class T, int Wave, int Dim>
__global__ void __launch_bounds__(kThreads) sdpa_tiles(SdpaOperands<T> p, bool vectors) {
  wait_for_previous_kernel();
  constexpr int kOwn = Dim / kPerRow;
  using Tiles = SdpaTiles<T, Dim>;
  Tiles& tiles = *dynamic_shared<Tiles>();
  const int thread = static_cast<int>(thread_index().x), row = thread / kPerRow;
  const int part = thread % kPerRow;
  const int64_t rows = p.group * p.queries, row_tiles = (rows + kRows - 1) / kRows;
  // Later rows see more keys: the heavy tiles go first.
  const int64_t tile = row_tiles - 1 - block_index().x % row_tiles;
  const int64_t rest = block_index().x / row_tiles, split = rest % p.splits;
  const int64_t z = rest / p.splits, kv_head = z % p.kv_heads, b = z / p.kv_heads;
  const int64_t packed = tile * kRows + row;
  const KeySplits keys = key_splits(p);
  if (split >= keys.splits) return;
  const bool live = packed < rows;
  const int64_t token = live ? packed / p.group : p.queries - 1;
  const int64_t head = kv_head * p.group + (live ? packed % p.group : 0);

  for (int i = thread; i < kRows * static_cast<int>(p.width); i += kThreads) {
    const int r = i / static_cast<int>(p.width), d = i % static_cast<int>(p.width);
    const int64_t at = tile * kRows + r;
    float x = 0;
    if (at < rows) {
      const int64_t h = kv_head * p.group + at % p.group;
      x = to_float(p.q[b * p.q_stride[0] + h * p.q_stride[1] + at / p.group * p.q_stride[2] + d]);
    }
    tiles.q[r][d] = x;
  }

  const int64_t t0 = tile * kRows / p.group;
  const int64_t last_row = tile * kRows + kRows - 1 < rows ? tile * kRows + kRows - 1 : rows - 1;
  int64_t first = p.mask.first_key(t0), last = p.mask.last_key(last_row / p.group, keys.count);
  const int64_t split_first = split * keys.keys_per_split;
  const int64_t split_last = split_first + keys.keys_per_split;
  if (first < split_first) first = split_first;
  if (last > split_last) last = split_last;
  const T* k = p.k + b * p.k_stride[0] + kv_head * p.k_stride[1] + keys.first * p.k_stride[2];
  const T* v = p.v + b * p.v_stride[0] + kv_head * p.v_stride[1] + keys.first * p.v_stride[2];

  float best = -INFINITY, total = 0, own[kOwn] = {};
  for (int64_t key0 = first / kKeys * kKeys; key0 < last; key0 += kKeys) {
    block_barrier();  // the values of the previous tile have been used; q has been written
    load_tile<T, Dim>(tiles.kv, k, p.k_stride[2], key0, last, p.width, vectors);
    block_barrier();
    float score[kScores], largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const int at = part + j * kPerRow;
      float dot = 0;
      for (int d = 0; d < p.width; ++d) {
        dot = fused_multiply_add(tiles.q[row][d], to_float(tiles.kv[at][d]), dot);
      }
      dot *= p.scale;
      if (p.softcap > 0) dot = p.softcap * tanhf(dot / p.softcap);
      const int64_t key = key0 + at;
      bool allowed = live && key >= first && key < last && p.mask.allows(b, head, token, key);
      if (allowed && p.mask.explicit_additive) {
        const float m = to_float(static_cast<const T*>(
            p.mask.explicit_additive)[p.mask.explicit_at(b, head, token, key)]);
        allowed = !(m <= p.lowest);
        dot += m;
      }
      score[j] = allowed ? dot : -INFINITY;
      largest = score[j] > largest || score[j] != score[j] ? score[j] : largest;
    }
    largest = over_row<Wave>(largest, [](float x, float y) { return y > x || y != y ? y : x; });
    const float now = largest > best || largest != largest ? largest : best;
    const float rescale = best == -INFINITY ? 0.0f : expf(best - now);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const float weight = score[j] == -INFINITY ? 0.0f : expf(score[j] - now);
      tiles.p[row][part + j * kPerRow] = weight;
      sum += weight;
    }
    total = total * rescale + over_row<Wave>(sum, [](float x, float y) { return x + y; });
    best = now;
    block_barrier();  // keys have been used, weights are written
    load_tile<T, Dim>(tiles.kv, v, p.v_stride[2], key0, last, p.value_width, vectors);
    block_barrier();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] *= rescale;
    for (int s = 0; s < kKeys; ++s) {
      const float weight = tiles.p[row][s];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int d = part + i * kPerRow;
        if (d < p.value_width)
          own[i] = fused_multiply_add(weight, to_float(tiles.kv[s][d]), own[i]);
      }
    }
  }
  if (!live) return;

  if (p.splits > 1) {
    const int64_t at = (z * p.splits + split) * rows + packed;
    if (part == 0) {
      p.state[2 * at] = best;
      p.state[2 * at + 1] = total;
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int d = part + i * kPerRow;
      if (d < p.value_width) p.partial[at * p.value_width + d] = own[i];
    }
    return;
  }
  T* out = p.out + b * p.out_stride[0] + token * p.out_stride[1] + head * p.out_stride[2];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int d = part + i * kPerRow;
    if (d >= p.value_width) continue;
    float y = own[i] / total;
    if (best == -INFINITY) {  // no key allowed
      y = 0;
      if (p.uniform) {
        for (int64_t s = 0; s < keys.count; ++s) y += to_float(v[s * p.v_stride[2] + d]);
        y /= static_cast<float>(keys.count);
      }
    }
    out[d] = from_float<T>(y);
  }
}

// One thread per output element: the partial sums of its row, in order of the splits.
template <class T>
__global__ void __launch_bounds__(256) sdpa_combine(SdpaOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t rows = p.group * p.queries, total = p.batch * p.kv_heads * rows * p.value_width;
  const int64_t step = int64_t{256} * grid_size().x;
  for (int64_t i = int64_t{256} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t d = i % p.value_width, packed = i / p.value_width % rows;
    const int64_t z = i / p.value_width / rows, kv_head = z % p.kv_heads, b = z / p.kv_heads;
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
      sum += factor * p.partial[at * p.value_width + d];
    }
    float y = sum / weight;
    if (best == -INFINITY) {
      y = 0;
      if (p.uniform) {
        const T* v = p.v + b * p.v_stride[0] + kv_head * p.v_stride[1] + keys.first * p.v_stride[2];
        for (int64_t s = 0; s < keys.count; ++s) y += to_float(v[s * p.v_stride[2] + d]);
        y /= static_cast<float>(keys.count);
      }
    }
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
  p.width = q.dim(3);
  p.value_width = v.dim(3);
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

// The smallest head_dim that the kernel is compiled for, holds `width` and may run; 0: none.
int64_t choose_dim(GpuOps& ops, std::string_view kernel, int64_t width) {
  constexpr std::pair<int64_t, std::string_view> kDims[] = {
      {32, "d32"}, {64, "d64"}, {96, "d96"}, {128, "d128"}, {256, "d256"}};
  for (const auto& [dim, variant] : kDims) {
    if (width <= dim && ops.choose(kernel, variant)) return dim;
  }
  return 0;
}

}  // namespace

void GpuOps::do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMask& mask, const SdpaParams& params) {
  if (out.numel() == 0) return;
  if (library_sdpa(out, q, k, v, mask, params) || decode_sdpa(out, q, k, v, mask, params)) return;
  const int64_t width = q.dim(3) > v.dim(3) ? q.dim(3) : v.dim(3);
  require<Unsupported>(width <= 256, "sdpa", "head_dim ", width,
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
    int64_t dim = p.splits > 1 ? choose_dim(*this, "split_keys", width) : 0;
    if (dim == 0) {
      p.splits = 1;
      p.keys_per_split = p.keys;
      dim = choose_dim(*this, "tiles", width);
      if (dim == 0) choice().exhausted();
    }
    if (p.splits > 1) {
      const int64_t states = p.batch * p.kv_heads * p.splits * rows;
      p.partial = arena().take(DType::f32, Shape({states, p.value_width})).data<float>();
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
