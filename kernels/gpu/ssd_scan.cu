// The Mamba2 scan of a sequence in chunks (Dao and Gu 2024, section 6).
//
// x [B, T, H, P], b, c [B, T, G, N], state [B, H, P, N]. With a_t the sum of dt A from the chunk's
// start through t, and the state S before the chunk,
//   y_t = sum over s <= t of (c_t . b_s) exp(a_t - a_s) dt_s x_s + exp(a_t) S c_t + d x_t,
//   S'  = exp(a_L) S + sum over s of exp(a_L - a_s) dt_s x_s (outer) b_s.
// Four kernels: time steps and their sums; what every chunk adds to the state; the states before
// all chunks, a thread per element walking through them; the outputs. The second and the last are
// products of 64 x 64 tiles by blocks of 256 threads, each thread 4 x 4, slices of 16 of the inner
// axis passing through shared memory as float32. The sums a_t are pairs of floats, as their
// differences are exponents.
#include "kernels/gpu/ssd.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kChunk = 64, kDepth = 16, kThreads = 256, kOwn = 4;
constexpr int kTile = 64;  // of head_dim or of the state's columns
static_assert(kChunk == kTile, "the tokens of a chunk are one tile of a product");

// Work memory between the kernels: dt_t and a_t = high + low, [B, H, T] each, and states
// [B, H, chunks, P, N], first what a chunk adds, then the state before it.
struct Workspace {
  float* dt;
  float* high;
  float* low;
  float* states;
  int64_t chunks;
};

struct Place {
  int64_t row, head, chunk;
};
// The n-th of all chunks of all heads; chunks are last.
template <class T>
__device__ inline Place place_of(const SsdOperands<T>& p, const Workspace& w, int64_t n) {
  const int64_t head = n / w.chunks;
  return {head / p.heads, head % p.heads, n % w.chunks};
}

// exp(a_t - a_s), indices into high and low.
__device__ inline float decay(const Workspace& w, int64_t t, int64_t s) {
  return expf((w.high[t] - w.high[s]) + (w.low[t] - w.low[s]));
}

template <class T>
__global__ void __launch_bounds__(kChunk) time_sums(SsdOperands<T> p, Workspace w) {
  struct Sums {
    double v[kChunk];
  };
  Sums& sums = block_shared<Sums>();
  const int t = static_cast<int>(thread_index().x);
  for (int64_t n = block_index().x; n < p.batch * p.heads * w.chunks; n += grid_size().x) {
    const Place at = place_of(p, w, n);
    const int64_t token = at.chunk * kChunk + t;
    const float dt = token < p.tokens ? p.time_step(at.row, token, at.head) : 0.0f;
    double sum = static_cast<double>(dt) * static_cast<double>(p.rate(at.head));
    for (int distance = 1; distance < kChunk; distance *= 2) {
      block_barrier();  // the earlier round has been read
      sums.v[t] = sum;
      block_barrier();
      if (t >= distance) sum += sums.v[t - distance];
    }
    if (token >= p.tokens) continue;
    const int64_t i = (at.row * p.heads + at.head) * p.tokens + token;
    w.dt[i] = dt;
    w.high[i] = static_cast<float>(sum);
    w.low[i] = static_cast<float>(sum - static_cast<double>(w.high[i]));
  }
}

struct Slice {
  float v[kDepth][kTile + 4];  // [inner][row or column]
};
struct LeftSlice : Slice {};
struct RightSlice : Slice {};

// sum += left right for one slice: this thread's 4 x 4 of the tile.
__device__ inline void multiply(const float (*left)[kTile + 4], const Slice& right,
                                float (&sum)[kOwn][kOwn]) {
  const int t = static_cast<int>(thread_index().x);
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    float a[kOwn], b[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      a[i] = left[k][t / 16 * kOwn + i];
      b[i] = right.v[k][t % 16 + 16 * i];
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[i][j] = fused_multiply_add(a[i], b[j], sum[i][j]);
    }
  }
}

// Calls f(row, column, sum) for this thread's elements of the tile.
template <class F>
__device__ inline void each_own(const float (&sum)[kOwn][kOwn], F f) {
  const int t = static_cast<int>(thread_index().x);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) f(t / 16 * kOwn + i, t % 16 + 16 * j, sum[i][j]);
  }
}

// Fills a slice: f(inner, outer) for all of it, neighbouring threads along the inner axis or along
// the outer one.
template <bool AlongInner, class F>
__device__ inline void fill(Slice& slice, F f) {
  for (int i = static_cast<int>(thread_index().x); i < kDepth * kTile; i += kThreads) {
    const int inner = AlongInner ? i % kDepth : i / kTile;
    const int outer = AlongInner ? i / kDepth : i % kTile;
    slice.v[inner][outer] = f(inner, outer);
  }
}

__host__ __device__ inline int64_t tiles(int64_t extent) { return (extent + kTile - 1) / kTile; }

// states[p, n] = sum over s of exp(a_L - a_s) dt_s x_s[p] b_s[n]
template <class T>
__global__ void __launch_bounds__(kThreads) chunk_states(SsdOperands<T> p, Workspace w) {
  Slice& left = block_shared<LeftSlice>();
  Slice& right = block_shared<RightSlice>();
  const int64_t across = tiles(p.columns), per_chunk = tiles(p.head_dim) * across;
  const int64_t total = p.batch * p.heads * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Place at = place_of(p, w, n / per_chunk);
    const int64_t row0 = n % per_chunk / across * kTile, column0 = n % across * kTile;
    const int64_t first = at.chunk * kChunk;
    const int64_t count = p.tokens - first < kChunk ? p.tokens - first : kChunk;
    const int64_t sums = (at.row * p.heads + at.head) * p.tokens + first;
    float sum[kOwn][kOwn] = {};
    for (int64_t s0 = 0; s0 < count; s0 += kDepth) {
      block_barrier();  // the slices of the previous round have been used
      fill<false>(left, [&](int k, int r) {
        const int64_t s = s0 + k;
        if (s >= count || row0 + r >= p.head_dim) return 0.0f;
        const float x = to_float(p.x.at(at.row, first + s, at.head)[row0 + r]);
        return decay(w, sums + count - 1, sums + s) * w.dt[sums + s] * x;
      });
      fill<false>(right, [&](int k, int c) {
        if (s0 + k >= count || column0 + c >= p.columns) return 0.0f;
        return to_float(p.b.at(at.row, first + s0 + k, at.head / p.per_group)[column0 + c]);
      });
      block_barrier();
      multiply(left.v, right, sum);
    }
    float* out = w.states + n / per_chunk * p.head_dim * p.columns;
    each_own(sum, [&](int r, int c, float v) {
      if (row0 + r >= p.head_dim || column0 + c >= p.columns) return;
      out[(row0 + r) * p.columns + column0 + c] = v;
    });
  }
}

// A thread owns one element of the state of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) pass_states(SsdOperands<T> p, Workspace w) {
  const int64_t size = p.head_dim * p.columns, total = p.batch * p.heads * size;
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t head = i / size, element = i % size;
    const int64_t r = element / p.columns, c = element % p.columns;
    float state = p.state.data ? p.state.at(head / p.heads, head % p.heads, r)[c] : 0.0f;
    for (int64_t chunk = 0; chunk < w.chunks; ++chunk) {
      float& added = w.states[(head * w.chunks + chunk) * size + element];
      const int64_t end = (chunk + 1) * kChunk < p.tokens ? (chunk + 1) * kChunk : p.tokens;
      const int64_t last = head * p.tokens + end - 1;
      const float next = expf(w.high[last] + w.low[last]) * state + added;
      added = state;
      state = next;
    }
    if (p.after.data) p.after.at(head / p.heads, head % p.heads, r)[c] = state;
  }
}

struct Weights {
  float v[kChunk][kChunk + 4];  // [s][t]
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    chunk_outputs(SsdOperands<T> p, Workspace w, Strided<float> y) {
  Slice& left = block_shared<LeftSlice>();
  Slice& right = block_shared<RightSlice>();
  Weights& weights = block_shared<Weights>();
  const int64_t per_chunk = tiles(p.head_dim);
  const int64_t total = p.batch * p.heads * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Place at = place_of(p, w, n / per_chunk);
    const int64_t column0 = n % per_chunk * kTile, first = at.chunk * kChunk;
    const int64_t count = p.tokens - first < kChunk ? p.tokens - first : kChunk;
    const int64_t sums = (at.row * p.heads + at.head) * p.tokens + first;
    const int64_t group = at.head / p.per_group;
    const auto vector = [&](const Strided<const T>& v, int64_t token, int64_t column) {
      const bool inside = token < count && column < p.columns;
      return inside ? to_float(v.at(at.row, first + token, group)[column]) : 0.0f;
    };

    float product[kOwn][kOwn] = {};  // c_t . b_s
    for (int64_t n0 = 0; n0 < p.columns; n0 += kDepth) {
      block_barrier();
      fill<true>(left, [&](int k, int t) { return vector(p.c, t, n0 + k); });
      fill<true>(right, [&](int k, int s) { return vector(p.b, s, n0 + k); });
      block_barrier();
      multiply(left.v, right, product);
    }
    each_own(product, [&](int t, int s, float v) {
      const bool counts = s <= t && t < count;
      weights.v[s][t] = counts ? v * decay(w, sums + t, sums + s) * w.dt[sums + s] : 0.0f;
    });

    float sum[kOwn][kOwn] = {};
    for (int64_t s0 = 0; s0 < count; s0 += kDepth) {
      block_barrier();
      fill<false>(right, [&](int k, int c) {
        if (s0 + k >= count || column0 + c >= p.head_dim) return 0.0f;
        return to_float(p.x.at(at.row, first + s0 + k, at.head)[column0 + c]);
      });
      block_barrier();
      multiply(weights.v + s0, right, sum);
    }
    const float* state = w.states + n / per_chunk * p.head_dim * p.columns;
    for (int64_t n0 = 0; n0 < p.columns; n0 += kDepth) {
      block_barrier();
      fill<true>(left, [&](int k, int t) {
        if (t >= count) return 0.0f;
        return vector(p.c, t, n0 + k) * expf(w.high[sums + t] + w.low[sums + t]);
      });
      fill<true>(right, [&](int k, int c) {
        if (n0 + k >= p.columns || column0 + c >= p.head_dim) return 0.0f;
        return state[(column0 + c) * p.columns + n0 + k];
      });
      block_barrier();
      multiply(left.v, right, sum);
    }

    const float skip = to_float(p.d[at.head]);
    each_own(sum, [&](int t, int c, float v) {
      if (t >= count || column0 + c >= p.head_dim) return;
      const float x = to_float(p.x.at(at.row, first + t, at.head)[column0 + c]);
      y.at(at.row, first + t, at.head)[column0 + c] = fused_multiply_add(skip, x, v);
    });
  }
}

}  // namespace

void GpuOps::ssd_chunks(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                        const SsdParams& params) {
  const int64_t heads = in.x.dim(0) * in.x.dim(2), tokens = in.x.dim(1);
  const int64_t size = in.x.dim(3) * in.b.dim(3), chunks = (tokens + kChunk - 1) / kChunk;
  Arena::Scope scope(arena());
  const Tensor sums = arena().take(DType::f32, {3, heads, tokens});
  const Tensor states = arena().take(DType::f32, {heads, chunks, size});
  float* const dt = sums.data<float>();
  const Workspace w{dt, dt + heads * tokens, dt + 2 * heads * tokens, states.data<float>(), chunks};
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, params);
    const auto go = [&]<auto Kernel>(int64_t blocks, int threads, auto... more) {
      if (blocks == 0) return;
      launch<Kernel>("ssd_scan", {grid_for(blocks, 1)}, {static_cast<unsigned>(threads)}, 0,
                     stream(), p, w, more...);
    };
    const int64_t all = heads * chunks, down = tiles(p.head_dim);
    go.template operator()<time_sums<T>>(all, kChunk);
    go.template operator()<chunk_states<T>>(all * down * tiles(p.columns), kThreads);
    go.template operator()<pass_states<T>>((heads * size + kThreads - 1) / kThreads, kThreads);
    go.template operator()<chunk_outputs<T>>(all * down, kThreads, Strided<float>(y));
  });
}

void GpuOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                         const SsdParams& params) {
  if (params.form == SsdForm::step) {
    settle_for("step");
    return ssd_step(y, state_after, in);
  }
  settle_for("chunks");
  ssd_chunks(y, state_after, in, params);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
