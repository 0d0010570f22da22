// embedding: out[row] = R(weight[ids[row]] * scale); and causal_mask. A thread owns 16 bytes of the
// output at a time.
//
// An id outside the vocabulary cannot be reported from a kernel: it raises a flag in device memory
// that the next synchronize() turns into an error, and gives zeros.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

constexpr int kInFlight = 2;  // vectors of a thread, all read before the first is written

template <class T>
struct EmbeddingOperands {
  T* out;
  Rows out_rows;
  const int64_t* ids;
  Rows id_rows;
  Divisor ids_width;
  const T* weight;
  int64_t weight_stride, vocab;
  Divisor width;  // of a row, in vectors
  float scale;
  IdError* error;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) embedding_rows(EmbeddingOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t total = p.out_rows.count * p.width.value();
  const int64_t share = int64_t{kThreads} * kInFlight;
  for (int64_t base = share * block_index().x; base < total; base += share * grid_size().x) {
    Division at[kInFlight];
    int64_t id[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t i = base + int64_t{kThreads} * j + thread_index().x;
      at[j] = divide(i < total ? i : total - 1, p.width);
      const Division of_id = divide(at[j].quotient, p.ids_width);
      id[j] = p.ids[p.id_rows.offset(of_id.quotient) + of_id.remainder];
    }
    Vector<T, N> y[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t known = id[j] >= 0 && id[j] < p.vocab ? id[j] : 0;
      if (p.vocab > 0) {
        y[j] = load_vector<N>(p.weight + known * p.weight_stride + at[j].remainder * N);
      }
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (id[j] >= 0 && id[j] < p.vocab) continue;
      // Many threads may find one; the first tells which.
      if (atomic_add(&p.error->count, 1) == 0) {
        p.error->id = id[j];
        p.error->vocab = p.vocab;
      }
      y[j] = {};
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (base + int64_t{kThreads} * j + thread_index().x >= total) continue;
      if (p.scale != 1.0f) {
        float scaled[N];
#pragma unroll
        for (int k = 0; k < N; ++k) scaled[k] = to_float(y[j][k]) * p.scale;
        y[j] = narrowed<T>(scaled);
      }
      store_vector(p.out + p.out_rows.offset(at[j].quotient) + at[j].remainder * N, y[j]);
    }
  }
}

constexpr int kMaskThreads = 128;  // of a block, which owns a row: what depends on the query alone
                                   // is computed once

template <class T, int N>
__global__ void __launch_bounds__(kMaskThreads)
    causal_mask_rows(T* out, Rows out_rows, Divisor heads, Divisor queries, int keys, MaskView mask,
                     T allowed, T masked) {
  wait_for_previous_kernel();
  const bool ranges_only = !mask.explicit_bool && !mask.key_valid;
  for (int64_t row = block_index().x; row < out_rows.count; row += grid_size().x) {
    const Division by_query = divide(row, queries), by_head = divide(by_query.quotient, heads);
    const int64_t t = by_query.remainder;
    const int first = static_cast<int>(mask.first_key(t) < keys ? mask.first_key(t) : keys);
    const int last = static_cast<int>(mask.last_key(t, keys));
    T* to = out + out_rows.offset(row);
    const int step = static_cast<int>(block_size().x) * N;
#pragma unroll 4
    for (int key = static_cast<int>(thread_index().x) * N; key < keys; key += step) {
      Vector<T, N> y;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const bool may =
            key + k >= first && key + k < last &&
            (ranges_only || mask.allows(by_head.quotient, by_head.remainder, t, key + k));
        y[k] = may ? allowed : masked;
      }
      store_vector(to + key, y);
    }
  }
}

}  // namespace

void GpuOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                          double scale) {
  if (out.numel() == 0) return;
  with_storage("embedding", out.dtype(), [&]<class T>(T) {
    EmbeddingOperands<T> p{out.data<T>(),
                           rows_of("embedding", out),
                           ids.data<int64_t>(),
                           rows_of("embedding", ids),
                           Divisor(ids.dim(-1)),
                           weight.data<T>(),
                           weight.stride(0),
                           weight.dim(0),
                           {},
                           static_cast<float>(scale),
                           id_error()};
    const auto go = [&]<int N>() {
      p.width = Divisor(weight.dim(1) / N);
      launch_overlapped<embedding_rows<T, N>>("embedding",
                                              {grid_for(out.numel() / N, kThreads * kInFlight)},
                                              {kThreads}, 0, stream(), p);
    };
    if (rows_are_vectors(out) && rows_are_vectors(weight) && choose("vectors")) {
      return go.template operator()<kVector<T>>();
    }
    settle_for("scalars");
    go.template operator()<1>();
  });
}

void GpuOps::do_causal_mask(const Tensor& out, const AttentionMask& mask) {
  if (out.numel() == 0) return;
  const MaskView view = mask_view(mask);
  constexpr int64_t kMostKeys = int64_t{1} << 30;
  require<Unsupported>(out.dim(3) <= kMostKeys, "causal_mask", out.dim(3), " keys, at most ",
                       kMostKeys, " are implemented");
  const Rows rows = rows_of("causal_mask", out);
  const std::string_view variant = out.dtype() == DType::boolean ? "bool" : "additive";
  const auto go = [&]<class T>(T allowed, T masked) {
    const auto with_width = [&]<int N>() {
      const int64_t vectors = out.dim(3) / N;
      const auto threads =
          static_cast<unsigned>(std::min<int64_t>((vectors + 63) / 64 * 64, kMaskThreads));
      launch_overlapped<causal_mask_rows<T, N>>(
          "causal_mask", {grid_for(rows.count, 1)}, {threads}, 0, stream(), out.data<T>(), rows,
          Divisor(out.dim(1)), Divisor(out.dim(2)), static_cast<int>(out.dim(3)), view, allowed,
          masked);
    };
    if (rows_are_vectors(out) && choose("vectors", variant)) {
      return with_width.template operator()<kVector<T>>();
    }
    settle_for("scalars", variant);
    with_width.template operator()<1>();
  };
  if (out.dtype() == DType::boolean) return go(uint8_t{1}, uint8_t{0});
  with_storage("causal_mask", out.dtype(), [&]<class T>(T) {
    const bool infinite = mask.fully_masked == FullyMasked::zero;
    const double lowest = -info(out.dtype()).max;
    go(from_float<T>(0.0f), from_float<T>(infinite ? -INFINITY : static_cast<float>(lowest)));
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
