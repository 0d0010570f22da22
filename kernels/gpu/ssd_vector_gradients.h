// The gradients of b and c of the Mamba2 scan in chunks. Formulas: ssd_scan_backward.cu.
#pragma once

#include "kernels/gpu/ssd_chunks.h"

namespace plumb::PLUMB_GPU_VENDOR::ssd {

// The results, and memory between the kernels. Numbers per token are [.., kChunk].
template <class T>
struct ScanGradients {
  Strided<T> x, dt, b, c;
  T* a_log;
  T* d;
  T* dt_bias;
  Strided<float> state;           // no data: not wanted
  Strided<const float> y, after;  // of the scan's results; no data: zeros
  float* behind;                  // G of all chunks, as the states of Workspace
  float* read;                    // exp(a_t) c_t S d_y_t, [B, H, chunks, tiles of columns, ..]
  float* kept;                    // exp(a_L - a_s) b_s G x_s, likewise
  float* inside;                  // [B, H, chunks, 3, ..]: the two sums of E C M, and M_tt
  float* sums;                    // of a_log, d and dt_bias, [B, H, chunks, 3]

  __device__ const float* behind_of(int64_t chunk, int64_t columns, int64_t pitch) const {
    return behind + chunk * columns * pitch;
  }
};

// Neighbours of d_y, 0 beyond the last token and the last channel.
template <int N, class T>
__device__ inline Some<N> of_outputs(const SsdOperands<T>& p, const ScanGradients<T>& g,
                                     const Item<T>& item, int64_t head, int64_t token,
                                     int64_t channel) {
  return load_floats<N>(token < item.count && channel < p.head_dim,
                        g.y.at(item.at.row, item.first + token, head) + channel);
}
template <int N>
inline constexpr int kFloats = N < 4 ? N : 4;  // in an access of float32 where T has N

// Numbers of pairs of tokens, as the left operand of a product: [what is summed over, row].
struct PairSlices {
  Slice half[kChunk / kDepth];
  __device__ float& at(int inner, int row) { return half[inner / kDepth].v[inner % kDepth][row]; }
};

// The gradients of b and c for a tile of columns of a chunk of a group, and what the steps' ones
// need of them.
template <class T, int Wave, int N>
struct VectorGradients {
  const SsdOperands<T>& p;
  const Workspace& w;
  const ScanGradients<T>& g;
  const Item<T>& item;
  const int64_t column0;
  Slice &left, &right;
  ChunkSums& a;
  PairSlices& pairs;

  // x_s or d_y_t as the operand that has the channels inside.
  __device__ Some<N> of_x(int64_t head, int64_t channel, int token) const {
    return load_floats<N>(token < item.count && channel < p.head_dim,
                          p.x.at(item.at.row, item.first + token, head) + channel);
  }
  __device__ void fill_x(Slice& slice, int64_t head, int64_t p0) const {
    fill_across<N>(slice, [&](int k, int s) { return of_x(head, p0 + k, s); });
  }
  __device__ void fill_y(Slice& slice, int64_t head, int64_t p0) const {
    fill_across<kFloats<N>>(
        slice, [&](int k, int t) { return of_outputs<kFloats<N>>(p, g, item, head, t, p0 + k); });
  }
  __device__ void fill_state(const float* state, int64_t p0) const {
    fill_across<kSharing>(right, [&](int k, int c) {
      return load_floats<kSharing>(column0 + c < p.columns && p0 + k < w.pitch,
                                   state + (column0 + c) * w.pitch + p0 + k);
    });
  }
  template <class Fill>
  __device__ Sums over_channels(Fill fill) const {
    Sums out;
    for (int64_t p0 = 0; p0 < p.head_dim; p0 += kDepth) {
      block_barrier();  // the slices have been used
      fill(p0);
      block_barrier();
      out.multiply(left, right);
    }
    return out;
  }

  // to += factor product for each row, and the sum over the columns of `vectors` times
  // of_sum product, whose tiles are added later, into `parts`.
  template <class Factors>
  __device__ void take(Sums& to, const Sums& product, const Strided<const T>& vectors, float* parts,
                       Factors factors) const {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int token = Sums::row() + i;
      const auto [of_vector, of_sum] = factors(token);
      const T* vector = vectors.at(item.at.row, item.first + token, item.at.head);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int64_t column = column0 + Sums::column() + j;
        to.v[i][j] = fused_multiply_add(of_vector, product.v[i][j], to.v[i][j]);
        if (token < item.count && column < p.columns) {
          sum = fused_multiply_add(to_float(vector[column]), product.v[i][j], sum);
        }
      }
#pragma unroll
      for (int mask = kAcross / 2; mask > 0; mask /= 2) sum += shuffle_xor<Wave>(sum, mask);
      if (Sums::column() == 0) parts[token] = of_sum * sum;
    }
  }

  // to += pairs vectors.
  __device__ void add_pairs(Sums& to, const Strided<const T>& vectors) const {
#pragma unroll 1
    for (int half = 0; half < kChunk / kDepth; ++half) {
      block_barrier();  // pairs are written, the slice has been used
      fill_along<N>(right, [&](int k, int c) {
        return item.template vector<N>(p, vectors, item.at.head, half * kDepth + k, column0 + c);
      });
      block_barrier();
      to.multiply(pairs.half[half], right);
    }
  }

  // The sums of E C M that no vector has, and M_tt; `products` are E M, [s, t].
  __device__ void sum_inside(const Sums& products, const float* scores, float* to) const {
    block_barrier();  // the pairs before have been used
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int s = Sums::row() + i, t = Sums::column() + j;
        pairs.at(s, t) = products.v[i][j] * scores[s * kChunk + t];
        if (s == t) to[2 * kChunk + t] = products.v[i][j];
      }
    }
    block_barrier();
    const int t = static_cast<int>(thread_index().x);
    if (t >= kChunk) return;
    float crossing = 0, own = 0;
    for (int s = 0; s < t; ++s) {
      float sum = 0;
      for (int r = t; r < item.count; ++r) sum += pairs.at(s, r);
      crossing = fused_multiply_add(a.dt[s], sum, crossing);
    }
    for (int r = t; r < item.count; ++r) own += pairs.at(t, r);
    to[t] = crossing;
    to[kChunk + t] = own;
  }

  __device__ void add_head(Sums& d_b, Sums& d_c, int64_t head) const {
    const int64_t chunk = (item.at.row * p.heads + head) * w.chunks + item.at.chunk;
    const int64_t part = (chunk * tiles(p.columns) + item.tile) * kChunk;
    block_barrier();  // the sums of the previous head have been used
    a.load(w, (item.at.row * p.heads + head) * p.tokens + item.first, item.count);
    struct Two {
      float of_vector, of_sum;
    };
    const float* state = w.state(chunk, p.columns);
    take(d_c, over_channels([&](int64_t p0) {
           fill_y(left, head, p0);
           fill_state(state, p0);
         }),
         p.c, g.read + part, [&](int t) {
           const float grown = expf(a.high[t] + a.low[t]);
           return Two{grown, grown};
         });
    const float* behind = g.behind_of(chunk, p.columns, w.pitch);
    take(d_b, over_channels([&](int64_t p0) {
           fill_x(left, head, p0);
           fill_state(behind, p0);
         }),
         p.b, g.kept + part, [&](int s) {
           const float left_over = a.decay(item.count - 1, s);
           return Two{left_over * a.dt[s], left_over};
         });
    Sums products = over_channels([&](int64_t p0) {
      fill_x(left, head, p0);
      fill_y(right, head, p0);
    });
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int s = Sums::row() + i, t = Sums::column() + j;
        products.v[i][j] = s <= t && t < item.count ? products.v[i][j] * a.decay(t, s) : 0.0f;
      }
    }
    if (item.tile == 0) {
      const int64_t groups = p.heads / p.per_group;
      sum_inside(products,
                 w.scores + ((item.at.row * groups + item.at.head) * w.chunks + item.at.chunk) *
                                kChunk * kChunk,
                 g.inside + chunk * 3 * kChunk);
    }
    const auto write_pairs = [&](bool by_source) {
      block_barrier();  // the pairs before have been used
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          const int s = Sums::row() + i, t = Sums::column() + j;
          (by_source ? pairs.at(s, t) : pairs.at(t, s)) = products.v[i][j] * a.dt[s];
        }
      }
    };
    write_pairs(true);
    add_pairs(d_c, p.b);
    write_pairs(false);
    add_pairs(d_b, p.c);
  }

  __device__ void write(const Strided<T>& to, const Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int token = Sums::row() + i;
      if (token >= item.count) break;
      T* row = to.at(item.at.row, item.first + token, item.at.head);
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int64_t column = column0 + Sums::column() + j;
        if (column < p.columns) row[column] = from_float<T>(sums.v[i][j]);
      }
    }
  }
};

template <class T, int Wave, int N>
__global__ void __launch_bounds__(kThreads)
    gradients_of_vectors(SsdOperands<T> p, Workspace w, ScanGradients<T> g) {
  wait_for_previous_kernel();
  const int64_t per_chunk = tiles(p.columns), groups = p.heads / p.per_group;
  const int64_t total = p.batch * groups * w.chunks * per_chunk;
  for (int64_t n = block_index().x; n < total; n += grid_size().x) {
    const Item<T> item(p, w, groups, per_chunk, n);
    const VectorGradients<T, Wave, N> of{p,
                                         w,
                                         g,
                                         item,
                                         item.tile * kTile,
                                         block_shared<LeftSlice>(),
                                         block_shared<RightSlice>(),
                                         block_shared<ChunkSums>(),
                                         block_shared<PairSlices>()};
    Sums d_b, d_c;
    const int64_t first = item.at.head * p.per_group;
    for (int64_t h = first; h < first + p.per_group; ++h) of.add_head(d_b, d_c, h);
    of.write(g.b, d_b);
    of.write(g.c, d_c);
  }
}

}  // namespace plumb::PLUMB_GPU_VENDOR::ssd
