// The Mamba2 scan of a sequence in chunks (Dao and Gu 2024, section 6).
//
// x [B, T, H, P], b, c [B, T, G, N], state [B, H, P, N]. With a_t the sum of dt A from the chunk's
// start through t, and the state S before the chunk,
//   y_t = sum over s <= t of (c_t . b_s) exp(a_t - a_s) dt_s x_s + exp(a_t) S c_t + d x_t,
//   S'  = exp(a_L) S + sum over s of exp(a_L - a_s) dt_s x_s (outer) b_s.
// Five kernels: time steps and their sums; c_t . b_s, which the heads of a group share; what every
// chunk adds to the state; the states before all chunks, a thread per few elements walking through
// them; the outputs. The sums a_t are pairs of floats, as their differences are exponents.
#include "kernels/gpu/ssd_chunks.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using namespace ssd;

// y for the rows and columns of a thread.
template <int N, class T>
__device__ inline void store_outputs(const SsdOperands<T>& p, const Strided<float>& y,
                                     const Item<T>& item, int64_t column, const Sums& sums) {
  constexpr int kStored = N < kOwnColumns ? N : kOwnColumns;
  const float skip = to_float(p.d[item.at.head]);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int t = Sums::row() + i;
    if (t >= item.count) break;
    const T* x = p.x.at(item.at.row, item.first + t, item.at.head) + column;
    float* out = y.at(item.at.row, item.first + t, item.at.head) + column;
#pragma unroll
    for (int j = 0; j < kOwnColumns; j += kStored) {
      if (column + j >= p.head_dim) break;
      const Some<kStored> some = load_floats<kStored>(true, x + j);
      Vector<float, kStored> values;
#pragma unroll
      for (int k = 0; k < kStored; ++k) {
        values[k] = fused_multiply_add(skip, some.v[k], sums.v[i][j + k]);
      }
      store_vector(out + j, values);
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    chunk_outputs(SsdOperands<T> p, Workspace w, Strided<float> y) {
  wait_for_previous_kernel();
  Slice &left = block_shared<LeftSlice>(), &right = block_shared<RightSlice>();
  ChunkSums& a = block_shared<ChunkSums>();
  const int64_t per_chunk = tiles(p.head_dim);
  const int64_t total = p.batch * p.heads * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Item<T> item(p, w, p.heads, per_chunk, n);
    const int64_t column0 = item.tile * kTile, group = item.at.head / p.per_group;
    block_barrier();  // the sums of the previous item have been used
    a.load(w, item.sums, item.count);
    const float* state = w.state(n / per_chunk, p.columns);
    Sums sums;
    for (int64_t n0 = 0; n0 < p.columns; n0 += kDepth) {
      if (n0 > 0) block_barrier();
      fill_across<N>(
          left, [&](int k, int t) { return item.template vector<N>(p, p.c, group, t, n0 + k); });
      fill_along<kSharing>(right, [&](int k, int c) {
        return load_floats<kSharing>(n0 + k < p.columns && column0 + c < w.pitch,
                                     state + (n0 + k) * w.pitch + column0 + c);
      });
      block_barrier();
      sums.multiply(left, right);
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const float grown = expf(a.high[Sums::row() + i] + a.low[Sums::row() + i]);
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) sums.v[i][j] *= grown;
    }
    const int64_t groups = p.heads / p.per_group;
    const float* scores =
        w.scores + ((item.at.row * groups + group) * w.chunks + item.at.chunk) * kChunk * kChunk;
    for (int64_t s0 = 0; s0 < item.count; s0 += kDepth) {
      block_barrier();
      fill_along<kSharing>(left, [&](int k, int t) {
        const int s = static_cast<int>(s0) + k;
        Some<kSharing> weights = load_floats<kSharing>(s < t + kSharing, scores + s * kChunk + t);
#pragma unroll
        for (int j = 0; j < kSharing; ++j) {
          weights.v[j] = s <= t + j ? weights.v[j] * a.decay(t + j, s) * a.dt[s] : 0.0f;
        }
        return weights;
      });
      fill_along<N>(right, [&](int k, int c) {
        return item.template columns_of_x<N>(p, s0 + k, column0 + c);
      });
      block_barrier();
      sums.multiply(left, right);
    }
    store_outputs<N>(p, y, item, column0 + Sums::column(), sums);
  }
}

}  // namespace

void GpuOps::ssd_chunks(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                        const SsdParams& params) {
  const int64_t heads = in.x.dim(0) * in.x.dim(2), groups = in.x.dim(0) * in.b.dim(2);
  const int64_t columns = in.b.dim(3);
  Arena::Scope scope(arena());
  const auto take = [&](const Shape& shape) {
    return arena().take(DType::f32, shape).data<float>();
  };
  const Workspace w = workspace_of(in, take);
  const int64_t chunks = w.chunks, pitch = w.pitch;
  const bool vectors = rows_are_vectors(in.x) && rows_are_vectors(in.b) && rows_are_vectors(in.c) &&
                       rows_are_vectors(y);
  with_storage("ssd_scan", in.x.dtype(), [&]<class T>(T) {
    const SsdOperands<T> p(state_after, in, params);
    const auto go = [&]<auto Kernel>(int64_t blocks, int threads, auto... more) {
      if (blocks == 0) return;
      launch_overlapped<Kernel>("ssd_scan", {grid_for(blocks, 1)}, {static_cast<unsigned>(threads)},
                                0, stream(), p, w, more...);
    };
    const auto all = [&]<int N>() {
      const int64_t of_heads = heads * chunks, down = tiles(p.head_dim);
      const int64_t pieces = heads * columns * pitch / kSharing;
      go.template operator()<time_sums<T>>(of_heads, kChunk);
      go.template operator()<chunk_scores<T, N>>(groups * chunks, kThreads);
      go.template operator()<chunk_states<T, N>>(of_heads * down * tiles(columns), kThreads);
      go.template operator()<pass_states<T>>((pieces + kThreads - 1) / kThreads, kThreads);
      go.template operator()<chunk_outputs<T, N>>(of_heads * down, kThreads, Strided<float>(y));
    };
    vectors ? all.template operator()<kVector<T>>() : all.template operator()<1>();
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
