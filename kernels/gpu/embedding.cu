// embedding: out[row] = R(weight[ids[row]] * scale). A block owns a row of the
// output, a thread 16 bytes of it at a time.
//
// An id outside the vocabulary cannot be reported from a kernel: it raises a flag in device memory
// that the next synchronize() turns into an error, and gives zeros.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kMostThreads = 512;
constexpr int kInFlight = 2;  // vectors of a thread, all read before the first is written

template <class T>
struct EmbeddingOperands {
  T* out;
  Rows out_rows;
  Ids ids;
  Rows id_rows;
  Divisor ids_width;
  const T* weight;
  int64_t weight_stride, vocab;
  int width;  // of a row, in vectors
  float scale;
  IdError* error;
};

// A block owns a row.
template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) embedding_rows(EmbeddingOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t row = block_index().x;
  const Division at = divide(row, p.ids_width);
  const int64_t id = p.ids.at(p.id_rows.offset(at.quotient) + at.remainder);
  const bool known = id >= 0 && id < p.vocab;
  const int thread = static_cast<int>(thread_index().x), threads = static_cast<int>(block_size().x);
  if (!known && thread == 0) note_unknown(p.error, OpId::embedding, id, row, p.vocab);
  const T* from = p.weight + (known ? id : 0) * p.weight_stride;
  T* to = p.out + p.out_rows.offset(row);
  for (int base = thread; base < p.width; base += threads * kInFlight) {
    Vector<T, N> y[kInFlight] = {};
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (known && base + j * threads < p.width) {
        y[j] = load_vector<N>(from + int64_t{base + j * threads} * N);
      }
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (base + j * threads >= p.width) continue;
      if (p.scale != 1.0f) {
        const Floats<T, N> element(y[j]);
        float scaled[N];
#pragma unroll
        for (int k = 0; k < N; ++k) scaled[k] = element[k] * p.scale;
        y[j] = narrowed<T>(scaled);
      }
      store_vector(to + int64_t{base + j * threads} * N, y[j]);
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
                           Ids(ids),
                           rows_of("embedding", ids),
                           Divisor(ids.dim(-1)),
                           weight.data<T>(),
                           weight.stride(0),
                           weight.dim(0),
                           {},
                           static_cast<float>(scale),
                           id_error()};
    const auto go = [&]<int N>() {
      p.width = static_cast<int>(weight.dim(1) / N);
      const int shared = (p.width + kInFlight - 1) / kInFlight;  // threads with all in flight
      const auto threads = static_cast<unsigned>(std::min((shared + 63) / 64 * 64, kMostThreads));
      launch_overlapped<embedding_rows<T, N>>(
          "embedding", {grid_of_rows("embedding", p.out_rows.count)}, {threads}, 0, stream(), p);
    };
    if (rows_are_vectors(out) && rows_are_vectors(weight) && choose("vectors")) {
      return go.template operator()<kVector<T>>();
    }
    settle_for("scalars");
    go.template operator()<1>();
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
