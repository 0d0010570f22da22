// Gradients of the Mamba2 scan in chunks.
//
// In a chunk, S being the state before it and G the gradient of the state behind it, with
// E_ts = exp(a_t - a_s) (ssd_scan.cu), C_ts = c_t . b_s and M_ts = d_y_t . x_s for s <= t,
//   d_c_t = sum over s of E_ts dt_s M_ts b_s + exp(a_t) S d_y_t,
//   d_b_s = dt_s (sum over t of E_ts M_ts c_t + exp(a_L - a_s) G x_s),
//   d_x_s = dt_s (sum over t of E_ts C_ts d_y_t + exp(a_L - a_s) G b_s) + d d_y_s,
// and before the chunk G is exp(a_L) G + sum over t of exp(a_t) d_y_t (outer) c_t. What passes from
// before token t to t and behind is multiplied by exp(dt_t A): the gradient of dt_t A is
//   q_t = sum over s < t <= r of E_rs C_rs dt_s M_rs + sum over r >= t of exp(a_r) c_r S d_y_r
//         + sum over s < t of exp(a_L - a_s) dt_s b_s G x_s + exp(a_L) <G, S>,
// and d_dt_t = A q_t + sum over r >= t of E_rt C_rt M_rt + exp(a_L - a_t) b_t G x_t. Nothing is
// subtracted. Sums have one order: the heads of a group are added by the block that has it.
#include "kernels/gpu/ssd_vector_gradients.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using namespace ssd;

// behind[n, p] = sum over t of exp(a_t) d_y_t[p] c_t[n]
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    chunk_gradients(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
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
    for (int64_t t0 = 0; t0 < item.count; t0 += kDepth) {
      if (t0 > 0) block_barrier();
      fill_along<N>(left, [&](int k, int r) {
        return item.template vector<N>(p, p.c, item.at.head / p.per_group, t0 + k, row0 + r);
      });
      fill_along<kFloats<N>>(right, [&](int k, int c) {
        Some<kFloats<N>> y = of_outputs<kFloats<N>>(p, g, item, item.at.head, t0 + k, column0 + c);
        const float grown = expf(a.high[t0 + k] + a.low[t0 + k]);
#pragma unroll
        for (float& it : y.v) it *= grown;
        return y;
      });
      block_barrier();
      sums.multiply(left, right);
    }
    float* out = g.behind + n / per_chunk * p.columns * w.pitch + column0 + Sums::column();
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

// From behind, a thread for kSharing elements of the state of one head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    pass_gradients(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
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
    Vector<float, kSharing> gradient{};
    each(g.after, [&](const float& from, int j) { gradient[j] = from; });
    float* const at = g.behind + (head * w.chunks * p.columns + c) * w.pitch + r;
    for (int64_t chunk = w.chunks - 1; chunk >= 0; --chunk) {
      float* const here = at + chunk * p.columns * w.pitch;
      const Vector<float, kSharing> added = load_vector<kSharing>(here);
      const float decay = w.decays[head * w.chunks + chunk];
      store_vector(here, gradient);
#pragma unroll
      for (int j = 0; j < kSharing; ++j) gradient[j] = decay * gradient[j] + added[j];
    }
    each(g.state, [&](float& to, int j) { to = gradient[j]; });
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    gradients_of_x(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
  wait_for_previous_kernel();
  Slice &left = block_shared<LeftSlice>(), &right = block_shared<RightSlice>();
  ChunkSums& a = block_shared<ChunkSums>();
  const int64_t per_chunk = tiles(p.head_dim), groups = p.heads / p.per_group;
  const int64_t total = p.batch * p.heads * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Item<T> item(p, w, p.heads, per_chunk, n);
    const int64_t column0 = item.tile * kTile, group = item.at.head / p.per_group;
    block_barrier();  // the sums of the previous item have been used
    a.load(w, item.sums, item.count);
    const float* behind = g.behind_of(n / per_chunk, p.columns, w.pitch);
    Sums sums;
    for (int64_t n0 = 0; n0 < p.columns; n0 += kDepth) {
      if (n0 > 0) block_barrier();
      fill_across<N>(
          left, [&](int k, int s) { return item.template vector<N>(p, p.b, group, s, n0 + k); });
      fill_along<kSharing>(right, [&](int k, int c) {
        return load_floats<kSharing>(n0 + k < p.columns && column0 + c < w.pitch,
                                     behind + (n0 + k) * w.pitch + column0 + c);
      });
      block_barrier();
      sums.multiply(left, right);
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const float left_over = a.decay(item.count - 1, Sums::row() + i);
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) sums.v[i][j] *= left_over;
    }
    const float* scores =
        w.scores + ((item.at.row * groups + group) * w.chunks + item.at.chunk) * kChunk * kChunk;
    for (int64_t t0 = 0; t0 < item.count; t0 += kDepth) {
      block_barrier();
      fill_across<kSharing>(left, [&](int k, int s) {
        const int t = static_cast<int>(t0) + k;
        Some<kSharing> weights = load_floats<kSharing>(s < t + kSharing, scores + s * kChunk + t);
#pragma unroll
        for (int j = 0; j < kSharing; ++j) {
          const bool seen = s <= t + j && t + j < item.count;
          weights.v[j] = seen ? weights.v[j] * a.decay(t + j, s) : 0.0f;
        }
        return weights;
      });
      fill_along<kFloats<N>>(right, [&](int k, int c) {
        return of_outputs<kFloats<N>>(p, g, item, item.at.head, t0 + k, column0 + c);
      });
      block_barrier();
      sums.multiply(left, right);
    }
    const float skip = to_float(p.d[item.at.head]);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int s = Sums::row() + i;
      if (s >= item.count) break;
      const int64_t column = column0 + Sums::column();
      const float* y = g.y.at(item.at.row, item.first + s, item.at.head) + column;
      T* to = g.x.at(item.at.row, item.first + s, item.at.head) + column;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        if (column + j >= p.head_dim) break;
        to[j] = from_float<T>(fused_multiply_add(a.dt[s], sums.v[i][j], skip * y[j]));
      }
    }
  }
}

// The gradients of a chunk's time steps, and what it adds to those of a head's numbers.
template <class T>
__global__ void __launch_bounds__(kChunk)
    gradients_of_steps(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
  wait_for_previous_kernel();
  struct Parts {
    float read[kChunk], kept[kChunk], states[kChunk], of[3][kChunk];
  };
  Parts& parts = block_shared<Parts>();
  const int t = static_cast<int>(thread_index().x);
  for (int64_t n = block_index().x; n < p.batch * p.heads * w.chunks; n += grid_size().x) {
    const Place at = place_of(w, p.heads, n);
    const int64_t token = at.chunk * kChunk + t, pieces = tiles(p.columns);
    const bool inside = token < p.tokens;
    const float dt = inside ? w.dt[(at.row * p.heads + at.head) * p.tokens + token] : 0.0f;
    float read = 0, kept = 0, states = 0;
    for (int64_t i = 0; i < pieces; ++i) {
      read += g.read[(n * pieces + i) * kChunk + t];
      kept += g.kept[(n * pieces + i) * kChunk + t];
    }
    const int64_t size = p.columns * w.pitch;
    for (int64_t i = t; i < size; i += kChunk) {
      states = fused_multiply_add(w.states[n * size + i], g.behind[n * size + i], states);
    }
    block_barrier();  // the parts of the previous chunk have been used
    parts.read[t] = read;
    parts.kept[t] = dt * kept;
    parts.states[t] = states;
    block_barrier();
    float sum = 0;
    for (int i = 0; i < kChunk; ++i) sum += parts.states[i];
    float through = fused_multiply_add(w.decays[n], sum, g.inside[n * 3 * kChunk + t]);
    for (int r = t; r < kChunk; ++r) through += parts.read[r];
    for (int s = 0; s < t; ++s) through += parts.kept[s];
    const float rate = p.rate(at.head), bias = to_float(p.dt_bias[at.head]);
    float of_step = 0;
    if (inside) {
      of_step = (g.inside[(n * 3 + 1) * kChunk + t] + kept + rate * through) *
                p.time_step_slope(at.row, token, at.head, bias);
      g.dt.at(at.row, token, 0)[at.head] = from_float<T>(of_step);
    }
    parts.of[0][t] = inside ? dt * rate * through : 0.0f;
    parts.of[1][t] = inside ? g.inside[(n * 3 + 2) * kChunk + t] : 0.0f;
    parts.of[2][t] = of_step;
    block_barrier();
    if (t >= 3) continue;
    float total = 0;
    for (int i = 0; i < kChunk; ++i) total += parts.of[t][i];
    g.sums[n * 3 + t] = total;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gradients_of_heads(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
  wait_for_previous_kernel();
  const int64_t h = int64_t{kThreads} * block_index().x + thread_index().x;
  if (h >= p.heads) return;
  float sums[3] = {};
  for (int64_t row = 0; row < p.batch; ++row) {
    for (int64_t chunk = 0; chunk < w.chunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 3; ++i)
        sums[i] += g.sums[((row * p.heads + h) * w.chunks + chunk) * 3 + i];
    }
  }
  g.a_log[h] = from_float<T>(sums[0]);
  g.d[h] = from_float<T>(sums[1]);
  g.dt_bias[h] = from_float<T>(sums[2]);
}

}  // namespace

void GpuOps::do_ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y,
                                  const Tensor& d_state_after, const SsdInputs& in,
                                  const SsdParams& params) {
  constexpr const char* kOp = "ssd_scan_backward";
  const int64_t heads = in.x.dim(0) * in.x.dim(2), groups = in.x.dim(0) * in.b.dim(2);
  const int64_t columns = in.b.dim(3);
  const int64_t down = tiles(columns), across = tiles(in.x.dim(3));
  Arena::Scope scope(arena());
  const auto take = [&](const Shape& shape) {
    return arena().take(DType::f32, shape).data<float>();
  };
  const Workspace w = workspace_of(in, take);
  const int64_t chunks = w.chunks, pitch = w.pitch;
  const bool vectors = rows_are_vectors(in.x) && rows_are_vectors(in.b) && rows_are_vectors(in.c) &&
                       rows_are_vectors(d_y);
  with_storage(kOp, in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p({}, in, params);
    const ScanGradients<T> g{Strided<T>(gradients.x),
                             Strided<T>(gradients.dt),
                             Strided<T>(gradients.b),
                             Strided<T>(gradients.c),
                             gradients.a_log.data<T>(),
                             gradients.d.data<T>(),
                             gradients.dt_bias.data<T>(),
                             Strided<float>(gradients.state),
                             Strided<const float>(d_y),
                             Strided<const float>(d_state_after),
                             take({heads, chunks, columns, pitch}),
                             take({heads, chunks, down, kChunk}),
                             take({heads, chunks, down, kChunk}),
                             take({heads, chunks, 3, kChunk}),
                             take({heads, chunks, 3})};
    const auto go = [&]<auto Kernel>(int64_t blocks, int threads, auto... more) {
      if (blocks == 0) return;
      launch_overlapped<Kernel>(kOp, {grid_for(blocks, 1)}, {static_cast<unsigned>(threads)}, 0,
                                stream(), p, w, more...);
    };
    const auto all = [&]<int N>() {
      const int64_t of_heads = heads * chunks;
      const int64_t pieces = (heads * columns * pitch / kSharing + kThreads - 1) / kThreads;
      go.template operator()<time_sums<T>>(of_heads, kChunk);
      go.template operator()<chunk_scores<T, N>>(groups * chunks, kThreads);
      go.template operator()<chunk_states<T, N>>(of_heads * down * across, kThreads);
      go.template operator()<pass_states<T>>(pieces, kThreads);
      go.template operator()<chunk_gradients<T, N>>(of_heads * down * across, kThreads, g);
      go.template operator()<pass_gradients<T>>(pieces, kThreads, g);
      go.template operator()<gradients_of_x<T, N>>(of_heads * across, kThreads, g);
      with_wave(stream(), [&]<int Wave>() {
        go.template operator()<gradients_of_vectors<T, Wave, N>>(groups * chunks * down, kThreads,
                                                                 g);
      });
      go.template operator()<gradients_of_steps<T>>(of_heads, kChunk, g);
      go.template operator()<gradients_of_heads<T>>((in.x.dim(2) + kThreads - 1) / kThreads,
                                                    kThreads, g);
    };
    vectors ? all.template operator()<kVector<T>>() : all.template operator()<1>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
