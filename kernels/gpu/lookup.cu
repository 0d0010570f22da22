// embedding: out[row] = R(weight[ids[row]] * scale); and causal_mask. One thread per element.
//
// An id outside the vocabulary cannot be reported from a kernel: it raises a flag in device memory
// that the next synchronize() turns into an error, and gives zeros.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/mask.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    embedding_rows(T* out, Rows out_rows, const int64_t* ids, const T* weight, int64_t vocab,
                   int64_t channels, float scale, int* error) {
  const int64_t width = channels / N, total = out_rows.count * width;
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t row = i / width, column = i % width * N, id = ids[row];
    Vector<T, N> y{};
    if (id >= 0 && id < vocab) {
      y = load_vector<N>(weight + id * channels + column);
      if (scale != 1.0f) {
#pragma unroll
        for (int k = 0; k < N; ++k) y[k] = from_float<T>(to_float(y[k]) * scale);
      }
    } else {
      *error = kIdOutsideVocabulary;
    }
    store_vector(out + out_rows.offset(row) + column, y);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_rows(T* out, Rows out_rows, int64_t heads, int64_t queries, int64_t keys, MaskView mask,
              T allowed, T masked) {
  const int64_t total = out_rows.count * keys, step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < total; i += step) {
    const int64_t row = i / keys, key = i % keys;
    const int64_t t = row % queries, h = row / queries % heads, b = row / queries / heads;
    out[out_rows.offset(row) + key] = mask.allows(b, h, t, key) ? allowed : masked;
  }
}

}  // namespace

void GpuOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                          double scale) {
  if (out.numel() == 0) return;
  require<Unsupported>(ids.contiguous() && weight.contiguous(), "embedding",
                       "ids and weight must be contiguous");
  with_storage("embedding", out.dtype(), [&]<class T>(T) {
    const Rows to = rows_of("embedding", out);
    const auto go = [&]<int N>() {
      launch<embedding_rows<T, N>>("embedding", {grid_for(out.numel() / N, kThreads)}, {kThreads},
                                   0, stream(), out.data<T>(), to,
                                   static_cast<const int64_t*>(ids.data<int64_t>()),
                                   static_cast<const T*>(weight.data<T>()), weight.dim(0),
                                   weight.dim(1), static_cast<float>(scale), error_flag());
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
  settle_for("elements");
  const MaskView view = mask_view(mask);
  const auto go = [&]<class T>(T allowed, T masked) {
    launch<mask_rows<T>>("causal_mask", {grid_for(out.numel(), kThreads)}, {kThreads}, 0, stream(),
                         out.data<T>(), rows_of("causal_mask", out), out.dim(1), out.dim(2),
                         out.dim(3), view, allowed, masked);
  };
  if (out.dtype() == DType::boolean) return go(uint8_t{1}, uint8_t{0});
  with_storage("causal_mask", out.dtype(), [&]<class T>(T) {
    const bool infinite = mask.fully_masked == FullyMasked::zero;
    const double lowest = -info(out.dtype()).max;
    go(from_float<T>(0.0f), from_float<T>(infinite ? -INFINITY : static_cast<float>(lowest)));
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
