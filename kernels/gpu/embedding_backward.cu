// The gradient of an embedding's table: every row is the sum of the gradients of its tokens, in
// their order.
//
// The table is zeroed, and the ids are sorted (id_order.h). Then a block owns a place among them
// and some columns: where a row's tokens begin it sums their gradients, else it is done. Needs no
// atomics.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/id_order.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
constexpr int kOwned = 4;  // columns of a thread

template <class T>
struct TableOperands {
  T* d_weight;
  const T* d_out;
  Rows d_out_rows;
  const IdKey* keys;
  int64_t tokens, weight_stride, vocab, columns, padding;
  float scale;
};

template <class T>
__global__ void __launch_bounds__(kThreads) zero_table(TableOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t row = block_index().x;
  for (int64_t c = thread_index().x; c < p.columns; c += kThreads) {
    p.d_weight[row * p.weight_stride + c] = from_float<T>(0.0f);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_tokens(TableOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t begin = block_index().x, own = id_of(p.keys[begin]);
  if (begin > 0 && id_of(p.keys[begin - 1]) == own) return;
  if (own >= p.vocab || own == p.padding) return;
  const int64_t first = (int64_t{block_index().y} * kOwned * kThreads) + thread_index().x;
  float sums[kOwned] = {};
  for (int64_t at = begin; at < p.tokens; ++at) {
    const IdKey key = p.keys[at];
    if (id_of(key) != own) break;
    const T* row = p.d_out + p.d_out_rows.offset(place_of(key));
#pragma unroll
    for (int j = 0; j < kOwned; ++j) {
      const int64_t c = first + j * kThreads;
      if (c < p.columns) sums[j] += to_float(row[c]);
    }
  }
#pragma unroll
  for (int j = 0; j < kOwned; ++j) {
    const int64_t c = first + j * kThreads;
    if (c < p.columns) p.d_weight[own * p.weight_stride + c] = from_float<T>(sums[j] * p.scale);
  }
}

}  // namespace

void GpuOps::do_embedding_backward(const Tensor& d_weight, const Tensor& d_out, const Tensor& ids,
                                   double scale, int64_t padding) {
  constexpr const char* kOp = "embedding_backward";
  Arena::Scope scope(arena());
  with_storage(kOp, d_weight.dtype(), [&]<class T>(T) {
    const IdKey* keys =
        sorted_ids(*this, OpId::embedding_backward, ids, d_weight.dim(0), id_error());
    const TableOperands<T> p{d_weight.data<T>(),
                             d_out.data<T>(),
                             rows_of(kOp, d_out),
                             keys,
                             ids.numel(),
                             d_weight.stride(0),
                             d_weight.dim(0),
                             d_weight.dim(1),
                             padding,
                             static_cast<float>(scale)};
    if (d_weight.numel() > 0) {
      launch_overlapped<zero_table<T>>(kOp, {grid_of_rows(kOp, p.vocab)}, {kThreads}, 0, stream(),
                                       p);
    }
    if (p.tokens == 0) return;
    const unsigned tiles = grid_for(p.columns, kThreads * kOwned);
    launch_overlapped<sum_tokens<T>>(kOp, {grid_of_rows(kOp, p.tokens), tiles}, {kThreads}, 0,
                                     stream(), p);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
