// Gradients of attention without a T x S matrix (Dao 2023, FlashAttention-2, algorithm 2).
//
// With weights P = exp(score - max) / total, which are computed again from q and k, and
// delta_t = sum over e of d_out[t, e] out[t, e],
//   d_v = P^T d_out, dS = P (d_out v^T - delta) f'(q k^T), d_q = dS k, d_k = dS^T q,
// f being the scale and the softcap. One kernel finds maxima, totals and deltas; another, once for
// each gradient, has a block for 64 of its rows and up to 128 of its channels: it goes through the
// queries (of all heads of a group) or the keys in tiles of 64, makes P or dS of a tile in shared
// memory, and multiplies by what the gradient is a sum of. Products are float32, sums have one
// order and no atomics.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/ssd_tile.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

using ssd::fill_across;
using ssd::fill_along;
using ssd::kAcross;
using ssd::kDepth;
using ssd::kOwnColumns;
using ssd::kOwnRows;
using ssd::kThreads;
using ssd::kTile;
using ssd::LeftSlice;
using ssd::load_floats;
using ssd::RightSlice;
using ssd::Slice;
using ssd::Some;
using ssd::Sums;

constexpr int kColumnTiles = 2;  // of a block

// Rows [batch, head, position] of a tensor.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride[3];
  explicit HeadRows(const Tensor& t)
      : data(t.data<std::remove_const_t<T>>()), stride{t.stride(0), t.stride(1), t.stride(2)} {}
  __device__ T* at(int64_t b, int64_t h, int64_t position) const {
    return data + b * stride[0] + h * stride[1] + position * stride[2];
  }
};

// Of a query of a head. without_keys: the weight of every key, where none is allowed; else 0.
struct QuerySums {
  float max, reciprocal_of_total, delta, without_keys;
};

template <class T>
struct GradientOperands {
  HeadRows<const T> q, k, v, d_out, out;
  HeadRows<T> to;    // d_q, d_k or d_v
  const float* lse;  // null where it is not given
  int64_t lse_stride[2];
  QuerySums* sums;  // [B, H, T]
  int64_t heads, group, queries, keys, head_dim, v_head_dim, batch;
  float scale, softcap;  // softcap 0: none
  MaskView mask;
  bool uniform;  // the weights of a row without an allowed key (else they are zero)
  float lowest;  // additive masks at or below it mean "not allowed"
};

// What the softmax sees of q k^T, and its derivative; the score is -INFINITY and the slope 0 where
// the key is not allowed.
struct Score {
  float score, slope;
};
template <class T>
__device__ inline Score score_of(const GradientOperands<T>& p, float dot, int64_t b, int64_t h,
                                 int64_t t, int64_t s) {
  const Score hidden{-INFINITY, 0.0f};
  if (t >= p.queries || s >= p.keys || !p.mask.allows(b, h, t, s)) return hidden;
  Score out{dot * p.scale, p.scale};
  if (p.softcap > 0) {
    const float capped = tanhf(out.score / p.softcap);
    out.score = p.softcap * capped;
    out.slope *= 1 - capped * capped;
  }
  if (p.mask.explicit_additive) {
    const float m =
        to_float(static_cast<const T*>(p.mask.explicit_additive)[p.mask.explicit_at(b, h, t, s)]);
    if (m <= p.lowest) return hidden;
    out.score += m;
  }
  return out;
}

// 64 rows of a head, as an operand of a product along the channels.
template <class T>
struct TileRows {
  const T* first;
  int64_t stride, count, width;
  template <int N>
  __device__ Some<N> load(int64_t row, int64_t channel) const {
    return load_floats<N>(row < count && channel < width, first + row * stride + channel);
  }
};
template <class T>
__device__ inline TileRows<T> tile_rows(const HeadRows<const T>& of, int64_t b, int64_t h,
                                        int64_t first, int64_t extent, int64_t width) {
  return {of.at(b, h, first), of.stride[2], extent - first, width};
}

// sums[i, j] += sum over channels of left[i] right[j].
template <int N, class T>
__device__ inline void multiply_rows(Sums& sums, const TileRows<T>& left,
                                     const TileRows<T>& right) {
  Slice &l = block_shared<LeftSlice>(), &r = block_shared<RightSlice>();
  for (int64_t d = 0; d < left.width; d += kDepth) {
    block_barrier();  // the slices have been used
    fill_across<N>(l, [&](int k, int row) { return left.template load<N>(row, d + k); });
    fill_across<N>(r, [&](int k, int row) { return right.template load<N>(row, d + k); });
    block_barrier();
    sums.multiply(l, r);
  }
}

// Over the threads that share rows of a tile.
template <int Wave, class F>
__device__ inline float across(float v, F f) {
#pragma unroll
  for (int mask = kAcross / 2; mask > 0; mask /= 2) v = f(v, shuffle_xor<Wave>(v, mask));
  return v;
}

__host__ __device__ inline int64_t tiles_of(int64_t extent) { return (extent + kTile - 1) / kTile; }

template <class T, int Wave, int N>
__global__ void __launch_bounds__(kThreads) sdpa_query_sums(GradientOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t tiles = tiles_of(p.queries), n = block_index().x;
  const int64_t first = n % tiles * kTile, h = n / tiles % p.heads, b = n / tiles / p.heads;
  const int64_t last = first + kTile < p.queries ? first + kTile - 1 : p.queries - 1;
  const int64_t end = p.mask.last_key(last, p.keys);
  const auto add = [](float x, float y) { return x + y; };
  const auto larger = [](float x, float y) { return y > x || y != y ? y : x; };
  const TileRows<T> q = tile_rows(p.q, b, h, first, p.queries, p.head_dim);
  float best[kOwnRows], total[kOwnRows] = {};
#pragma unroll
  for (float& it : best) it = -INFINITY;
  for (int64_t s0 = p.mask.first_key(first) / kTile * kTile; s0 < end; s0 += kTile) {
    Sums dots;  // only whether there are keys is of interest where lse is given
    if (!p.lse) {
      multiply_rows<N>(dots, q, tile_rows(p.k, b, h / p.group, s0, p.keys, p.head_dim));
    }
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      float scores[kOwnColumns], largest = -INFINITY, sum = 0;
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        scores[j] =
            score_of(p, dots.v[i][j], b, h, first + Sums::row() + i, s0 + Sums::column() + j).score;
        largest = larger(largest, scores[j]);
      }
      largest = larger(best[i], across<Wave>(largest, larger));
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        sum += scores[j] == -INFINITY ? 0.0f : expf(scores[j] - largest);
      }
      sum = across<Wave>(sum, add);
      total[i] = (best[i] == -INFINITY ? 0.0f : total[i] * expf(best[i] - largest)) + sum;
      best[i] = largest;
    }
  }
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int64_t t = first + Sums::row() + i;
    const bool inside = t < p.queries;
    float delta = 0;
    for (int64_t e = thread_index().x % kAcross; inside && e < p.v_head_dim; e += kAcross) {
      delta = fused_multiply_add(to_float(p.d_out.at(b, h, t)[e]), to_float(p.out.at(b, h, t)[e]),
                                 delta);
    }
    delta = across<Wave>(delta, add);
    if (!inside || Sums::column() != 0) continue;
    const bool none = best[i] == -INFINITY;
    if (p.lse && !none) {
      best[i] = p.lse[b * p.lse_stride[0] + h * p.lse_stride[1] + t];
      total[i] = 1;
    }
    p.sums[(b * p.heads + h) * p.queries + t] = {
        none ? 0.0f : best[i], none ? 0.0f : 1 / total[i], delta,
        none && p.uniform ? 1 / static_cast<float>(p.keys) : 0.0f};
  }
}

enum class Gradient { q, k, v };

// Of a tile of queries and keys, P (of d_v) or dS: [what is summed over, row of the gradient].
struct Factors {
  Slice half[kTile / kDepth];
};
struct TileSums {
  QuerySums of[kTile];
};

// The rows of the gradient that a block makes, and the tile that it is at.
struct GradientPlace {
  int64_t b, head, kv_head, query, key;
};

template <Gradient Of, int N, class T>
__device__ inline void make_factors(Factors& factors, const TileSums& sums,
                                    const GradientOperands<T>& p, const GradientPlace& at) {
  constexpr bool kOfKeys = Of != Gradient::q;  // rows are keys, columns of `factors`
  const TileRows<T> q = tile_rows(p.q, at.b, at.head, at.query, p.queries, p.head_dim);
  const TileRows<T> k = tile_rows(p.k, at.b, at.kv_head, at.key, p.keys, p.head_dim);
  Sums dots, of_weights;
  multiply_rows<N>(dots, kOfKeys ? q : k, kOfKeys ? k : q);
  if (Of != Gradient::v) {
    const TileRows<T> g = tile_rows(p.d_out, at.b, at.head, at.query, p.queries, p.v_head_dim);
    const TileRows<T> v = tile_rows(p.v, at.b, at.kv_head, at.key, p.keys, p.v_head_dim);
    multiply_rows<N>(of_weights, kOfKeys ? g : v, kOfKeys ? v : g);
  }
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int inner = Sums::row() + i;
    Vector<float, kOwnColumns> row;
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int outer = Sums::column() + j, query = kOfKeys ? inner : outer;
      const int64_t s = at.key + (kOfKeys ? outer : inner);
      const QuerySums& it = sums.of[query];
      const Score score = score_of(p, dots.v[i][j], at.b, at.head, at.query + query, s);
      const bool hidden = score.score == -INFINITY;
      const float weight = hidden ? 0.0f : expf(score.score - it.max) * it.reciprocal_of_total;
      if (Of == Gradient::v) row[j] = it.without_keys > 0 ? it.without_keys : weight;
      else row[j] = hidden ? 0.0f : weight * ((of_weights.v[i][j] - it.delta) * score.slope);
    }
    store_vector(factors.half[inner / kDepth].v[inner % kDepth] + Sums::column(), row);
  }
}

// The sums of 64 queries of a head; zeros beyond the last.
template <class T>
__device__ inline void load_sums(TileSums& to, const GradientOperands<T>& p, int64_t b,
                                 int64_t head, int64_t first) {
  block_barrier();  // those of the tile before have been used
  const int i = static_cast<int>(thread_index().x);
  if (i < kTile) {
    to.of[i] =
        first + i < p.queries ? p.sums[(b * p.heads + head) * p.queries + first + i] : QuerySums{};
  }
  block_barrier();
}

// Whether the mask hides all keys of a tile from all of its queries, and none needs them as they
// have no keys at all.
template <class T>
__device__ inline bool nothing_of(const GradientOperands<T>& p, const TileSums& sums, int64_t query,
                                  int64_t key) {
  const int64_t last = query + kTile < p.queries ? query + kTile - 1 : p.queries - 1;
  if (key + kTile > p.mask.first_key(query) && key < p.mask.last_key(last, p.keys)) return false;
  bool all = true;
  for (const QuerySums& it : sums.of) all = all && it.without_keys == 0;
  return all;
}

template <class T, int N, Gradient Of>
__global__ void __launch_bounds__(kThreads) sdpa_gradient(GradientOperands<T> p) {
  wait_for_previous_kernel();
  constexpr bool kOfKeys = Of != Gradient::q;
  Factors& factors = block_shared<Factors>();
  TileSums& sums = block_shared<TileSums>();
  Slice& right = block_shared<RightSlice>();
  const int64_t rows = kOfKeys ? p.keys : p.queries, heads = kOfKeys ? p.heads / p.group : p.heads;
  const int64_t width = Of == Gradient::v ? p.v_head_dim : p.head_dim;
  const int64_t parts = (width + kColumnTiles * kTile - 1) / (kColumnTiles * kTile);
  int64_t n = block_index().x;
  const int64_t column0 = n % parts * (kColumnTiles * kTile);
  n /= parts;
  const int64_t row0 = n % tiles_of(rows) * kTile;
  n /= tiles_of(rows);
  const int64_t head = n % heads, b = n / heads;
  Sums out[kColumnTiles];
  const auto add_tile = [&](const GradientPlace& at) {
    block_barrier();  // the factors before have been used
    make_factors<Of, N>(factors, sums, p, at);
    const TileRows<T> from = Of == Gradient::v
                                 ? tile_rows(p.d_out, at.b, at.head, at.query, p.queries, width)
                             : kOfKeys ? tile_rows(p.q, at.b, at.head, at.query, p.queries, width)
                                       : tile_rows(p.k, at.b, at.kv_head, at.key, p.keys, width);
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      if (column0 + c * kTile >= width) break;
#pragma unroll 1
      for (int half = 0; half < kTile / kDepth; ++half) {
        block_barrier();  // factors are written, the slice before has been used
        fill_along<N>(right, [&](int k, int column) {
          return from.template load<N>(half * kDepth + k, column0 + c * kTile + column);
        });
        block_barrier();
        out[c].multiply(factors.half[half], right);
      }
    }
  };
  if constexpr (kOfKeys) {
    for (int64_t h = head * p.group; h < (head + 1) * p.group; ++h) {
      for (int64_t t0 = 0; t0 < p.queries; t0 += kTile) {
        load_sums(sums, p, b, h, t0);
        if (!nothing_of(p, sums, t0, row0)) add_tile({b, h, head, t0, row0});
      }
    }
  } else {
    load_sums(sums, p, b, head, row0);
    const int64_t last = row0 + kTile < p.queries ? row0 + kTile - 1 : p.queries - 1;
    const int64_t end = p.mask.last_key(last, p.keys);
    for (int64_t s0 = p.mask.first_key(row0) / kTile * kTile; s0 < end; s0 += kTile) {
      add_tile({b, head, head / p.group, row0, s0});
    }
  }
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int64_t row = row0 + Sums::row() + i;
      if (row >= rows) break;
      T* to = p.to.at(b, head, row);
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int64_t column = column0 + c * kTile + Sums::column() + j;
        if (column < width) to[column] = from_float<T>(out[c].v[i][j]);
      }
    }
  }
}

}  // namespace

void GpuOps::do_sdpa_backward(const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                              const Tensor& d_out, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& out, const Tensor& lse,
                              const AttentionMask& mask, const SdpaParams& params) {
  constexpr const char* kOp = "sdpa_backward";
  const Tensor given = d_out.transpose(1, 2), result = out.transpose(1, 2);
  const bool vectors =
      rows_are_vectors(q) && rows_are_vectors(k) && rows_are_vectors(v) && rows_are_vectors(d_out);
  const int64_t rows = q.dim(0) * q.dim(1), queries = q.dim(2), kv_rows = k.dim(0) * k.dim(1);
  Arena::Scope scope(arena());
  with_storage(kOp, q.dtype(), [&]<class T>(T) {
    GradientOperands<T> p{
        HeadRows<const T>(q),
        HeadRows<const T>(k),
        HeadRows<const T>(v),
        HeadRows<const T>(given),
        HeadRows<const T>(result),
        HeadRows<T>(d_q),
        lse.defined() ? lse.data<float>() : nullptr,
        {lse.defined() ? lse.stride(0) : 0, lse.defined() ? lse.stride(1) : 0},
        static_cast<QuerySums*>(arena().take(DType::f32, {rows, queries, int64_t{4}}).raw()),
        q.dim(1),
        kv_rows ? q.dim(1) / k.dim(1) : 1,
        queries,
        k.dim(2),
        q.dim(3),
        v.dim(3),
        q.dim(0),
        static_cast<float>(params.scale),
        static_cast<float>(params.softcap.value_or(0)),
        mask_view(mask),
        mask.fully_masked != FullyMasked::zero,
        static_cast<float>(-info(q.dtype()).max)};
    const auto go = [&]<auto Kernel>(int64_t blocks) {
      if (blocks == 0) return;
      launch_overlapped<Kernel>(kOp, {grid_of_rows(kOp, blocks)}, {kThreads}, 0, stream(), p);
    };
    const auto all = [&]<int N>() {
      with_wave(stream(), [&]<int Wave>() {
        go.template operator()<sdpa_query_sums<T, Wave, N>>(rows * tiles_of(queries));
      });
      const auto gradient = [&]<Gradient Of>(const Tensor& to) {
        if (to.numel() == 0) return;
        p.to = HeadRows<T>(to);
        const int64_t tiles = to.dim(0) * to.dim(1) * tiles_of(to.dim(2));
        const int64_t parts = (to.dim(3) + kColumnTiles * kTile - 1) / (kColumnTiles * kTile);
        go.template operator()<sdpa_gradient<T, N, Of>>(tiles * parts);
      };
      gradient.template operator()<Gradient::q>(d_q);
      gradient.template operator()<Gradient::k>(d_k);
      gradient.template operator()<Gradient::v>(d_v);
    };
    vectors ? all.template operator()<kVector<T>>() : all.template operator()<1>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
