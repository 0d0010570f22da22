// The Mamba2 scan in chunks up to the states before all chunks: what the scan and its gradients
// share. Formulas: ssd_scan.cu. The sums a_t are pairs of floats, as their differences are
// exponents.
#pragma once

#include "kernels/gpu/ssd.h"
#include "kernels/gpu/ssd_tile.h"

namespace plumb::PLUMB_GPU_VENDOR::ssd {

inline constexpr int kChunk = kTile;  // tokens: one tile of a product
inline constexpr int kSharing = 4;    // neighbouring elements of a state that a thread takes
inline constexpr int kChunksAhead = 8;

// Work memory between the kernels: dt_t and a_t = high + low, [B, H, T] each; exp(a_L) [B, H,
// chunks]; c_t . b_s [B, G, chunks, s, t]; and states [B, H, chunks, N, pitch], transposed and
// padded, first what a chunk adds, then the state before it.
struct Workspace {
  float* dt;
  float* high;
  float* low;
  float* decays;
  float* scores;
  float* states;
  int64_t chunks, pitch;

  __device__ float* state(int64_t chunk, int64_t columns) const {
    return states + chunk * columns * pitch;
  }
};

// `take` gives float32 memory of a shape.
template <class Take>
Workspace workspace_of(const SsdInputs& in, Take take) {
  const int64_t heads = in.x.dim(0) * in.x.dim(2), groups = in.x.dim(0) * in.b.dim(2);
  const int64_t tokens = in.x.dim(1), chunks = (tokens + kChunk - 1) / kChunk;
  const int64_t pitch = (in.x.dim(3) + kSharing - 1) / kSharing * kSharing;
  float* const dt = take(Shape{3, heads, tokens});
  return {dt,
          dt + heads * tokens,
          dt + 2 * heads * tokens,
          take(Shape{heads, chunks}),
          take(Shape{groups, chunks, kChunk, kChunk}),
          take(Shape{heads, chunks, in.b.dim(3), pitch}),
          chunks,
          pitch};
}

struct Place {
  int64_t row, head, chunk;  // or group
};
// The n-th of all chunks of all heads; chunks are last.
__device__ inline Place place_of(const Workspace& w, int64_t heads, int64_t n) {
  const int64_t head = n / w.chunks;
  return {head / heads, head % heads, n % w.chunks};
}

template <class T>
__global__ void __launch_bounds__(kChunk) time_sums(SsdOperands<T> p, Workspace w) {
  wait_for_previous_kernel();
  struct Doubles {
    double v[kChunk];
  };
  Doubles& sums = block_shared<Doubles>();
  const int t = static_cast<int>(thread_index().x);
  for (int64_t n = block_index().x; n < p.batch * p.heads * w.chunks; n += grid_size().x) {
    const Place at = place_of(w, p.heads, n);
    const int64_t token = at.chunk * kChunk + t;
    const float bias = to_float(p.dt_bias[at.head]);
    const float dt = token < p.tokens ? p.time_step(at.row, token, at.head, bias) : 0.0f;
    double sum = static_cast<double>(dt) * static_cast<double>(p.rate(at.head));
    for (int distance = 1; distance < kChunk; distance *= 2) {
      block_barrier();  // the earlier round has been read
      sums.v[t] = sum;
      block_barrier();
      if (t >= distance) sum += sums.v[t - distance];
    }
    const float high = static_cast<float>(sum);
    const float low = static_cast<float>(sum - static_cast<double>(high));
    if (t == kChunk - 1) w.decays[n] = expf(high + low);  // beyond the last token, dt is 0
    if (token >= p.tokens) continue;
    const int64_t i = (at.row * p.heads + at.head) * p.tokens + token;
    w.dt[i] = dt;
    w.high[i] = high;
    w.low[i] = low;
  }
}

// dt and a of a chunk's tokens, 0 beyond the last.
struct ChunkSums {
  float dt[kChunk], high[kChunk], low[kChunk];

  __device__ void load(const Workspace& w, int64_t first, int64_t count) {
    for (int t = static_cast<int>(thread_index().x); t < kChunk; t += kThreads) {
      const bool inside = t < count;
      dt[t] = inside ? w.dt[first + t] : 0.0f;
      high[t] = inside ? w.high[first + t] : 0.0f;
      low[t] = inside ? w.low[first + t] : 0.0f;
    }
    block_barrier();
  }
  __device__ float decay(int64_t t, int64_t s) const {  // exp(a_t - a_s)
    return expf((high[t] - high[s]) + (low[t] - low[s]));
  }
};

__host__ __device__ inline int64_t tiles(int64_t extent) { return (extent + kTile - 1) / kTile; }

// A block's share of a kernel: one tile of one chunk of one head, or group.
template <class T>
struct Item {
  Place at;
  int64_t tile, first, count, sums;  // tokens of the chunk; where its sums start

  __device__ Item(const SsdOperands<T>& p, const Workspace& w, int64_t heads, int64_t per_chunk,
                  int64_t n)
      : at(place_of(w, heads, n / per_chunk)),
        tile(n % per_chunk),
        first(at.chunk * kChunk),
        count(p.tokens - first < kChunk ? p.tokens - first : kChunk),
        sums((at.row * heads + at.head) * p.tokens + first) {}

  // Columns of c_t or b_t, 0 beyond the last token and the last column.
  template <int N>
  __device__ Some<N> vector(const SsdOperands<T>& p, const Strided<const T>& v, int64_t group,
                            int64_t token, int64_t column) const {
    return load_floats<N>(token < count && column < p.columns,
                          v.at(at.row, first + token, group) + column);
  }
  template <int N>
  __device__ Some<N> columns_of_x(const SsdOperands<T>& p, int64_t token, int64_t column) const {
    return load_floats<N>(token < count && column < p.head_dim,
                          p.x.at(at.row, first + token, at.head) + column);
  }
};

// scores[s, t] = c_t . b_s
template <class T, int N>
__global__ void __launch_bounds__(kThreads) chunk_scores(SsdOperands<T> p, Workspace w) {
  wait_for_previous_kernel();
  Slice &left = block_shared<LeftSlice>(), &right = block_shared<RightSlice>();
  const int64_t groups = p.heads / p.per_group, total = p.batch * groups * w.chunks;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Item<T> item(p, w, groups, 1, n);
    Sums sums;
    for (int64_t n0 = 0; n0 < p.columns; n0 += kDepth) {
      block_barrier();  // the slices of the previous round have been used
      fill_across<N>(left, [&](int k, int s) {
        return item.template vector<N>(p, p.b, item.at.head, s, n0 + k);
      });
      fill_across<N>(right, [&](int k, int t) {
        return item.template vector<N>(p, p.c, item.at.head, t, n0 + k);
      });
      block_barrier();
      sums.multiply(left, right);
    }
    float* out = w.scores + n * kChunk * kChunk;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      Vector<float, kOwnColumns> row;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) row[j] = sums.v[i][j];
      store_vector(out + (Sums::row() + i) * kChunk + Sums::column(), row);
    }
  }
}

// states[n, p] = sum over s of exp(a_L - a_s) dt_s x_s[p] b_s[n]
template <class T, int N>
__global__ void __launch_bounds__(kThreads) chunk_states(SsdOperands<T> p, Workspace w) {
  wait_for_previous_kernel();
  Slice &left = block_shared<LeftSlice>(), &right = block_shared<RightSlice>();
  ChunkSums& a = block_shared<ChunkSums>();
  const int64_t across = tiles(p.head_dim), per_chunk = tiles(p.columns) * across;
  const int64_t total = p.batch * p.heads * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Item<T> item(p, w, p.heads, per_chunk, n);
    const int64_t row0 = item.tile / across * kTile, column0 = item.tile % across * kTile;
    block_barrier();  // the sums of the previous item have been used
    a.load(w, item.sums, item.count);
    Sums sums;
    for (int64_t s0 = 0; s0 < item.count; s0 += kDepth) {
      if (s0 > 0) block_barrier();
      fill_along<N>(left, [&](int k, int r) {
        return item.template vector<N>(p, p.b, item.at.head / p.per_group, s0 + k, row0 + r);
      });
      fill_along<N>(right, [&](int k, int c) {
        const int64_t s = s0 + k;
        Some<N> x = item.template columns_of_x<N>(p, s, column0 + c);
        const float weight = a.decay(item.count - 1, s) * a.dt[s];  // dt is 0 beyond the last
#pragma unroll
        for (int j = 0; j < N; ++j) x.v[j] *= weight;
        return x;
      });
      block_barrier();
      sums.multiply(left, right);
    }
    float* out = w.state(n / per_chunk, p.columns) + column0 + Sums::column();
    if (column0 + Sums::column() >= w.pitch) continue;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int64_t row = row0 + Sums::row() + i;
      if (row >= p.columns) break;
      Vector<float, kOwnColumns> values;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) values[j] = sums.v[i][j];
      store_vector(out + row * w.pitch, values);
    }
  }
}

// A thread owns kSharing elements of the state of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) pass_states(SsdOperands<T> p, Workspace w) {
  wait_for_previous_kernel();
  const int64_t pieces = w.pitch / kSharing, size = p.columns * pieces;
  const int64_t total = p.batch * p.heads * size, step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t head = i / size, c = i % size / pieces, r = i % pieces * kSharing;
    const auto each = [&](const auto& of, auto f) {
#pragma unroll
      for (int j = 0; j < kSharing; ++j) {
        if (of.data && r + j < p.head_dim) f(of.at(head / p.heads, head % p.heads, r + j)[c], j);
      }
    };
    Vector<float, kSharing> state{};
    each(p.state, [&](const float& from, int j) { state[j] = from; });
    float* const at = w.state(head * w.chunks, p.columns) + c * w.pitch + r;
    const int64_t next = p.columns * w.pitch;
    for (int64_t first = 0; first < w.chunks; first += kChunksAhead) {
      Vector<float, kSharing> added[kChunksAhead];
      float decay[kChunksAhead];
#pragma unroll
      for (int j = 0; j < kChunksAhead; ++j) {
        const int64_t chunk = first + j < w.chunks ? first + j : w.chunks - 1;
        added[j] = load_vector<kSharing>(at + chunk * next);
        decay[j] = w.decays[head * w.chunks + chunk];
      }
#pragma unroll
      for (int j = 0; j < kChunksAhead; ++j) {
        if (first + j < w.chunks) {
          store_vector(at + (first + j) * next, state);
#pragma unroll
          for (int k = 0; k < kSharing; ++k) state[k] = decay[j] * state[k] + added[j][k];
        }
      }
    }
    each(p.after, [&](float& to, int j) { to = state[j]; });
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR::ssd
