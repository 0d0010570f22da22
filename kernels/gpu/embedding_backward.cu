// The gradient of an embedding's table: every row is the sum of the gradients of its tokens, in
// their order.
//
// The table is zeroed first. Then a block owns a token and some columns; where no token before it
// has the same id, it goes through the ids and sums the gradients of those that do, else it is
// done. Needs no atomics.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/reduce.h"
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
  Ids ids;
  Rows id_rows;
  Divisor ids_width;
  int64_t tokens, weight_stride, vocab, columns, padding;
  float scale;
  IdError* error;

  __device__ int64_t id(int64_t token) const {
    const Division at = divide(token, ids_width);
    return ids.at(id_rows.offset(at.quotient) + at.remainder);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) zero_table(TableOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t row = block_index().x;
  for (int64_t c = thread_index().x; c < p.columns; c += kThreads) {
    p.d_weight[row * p.weight_stride + c] = from_float<T>(0.0f);
  }
}

struct SameIds {
  bool same[kThreads];
};

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) sum_tokens(TableOperands<T> p) {
  wait_for_previous_kernel();
  auto& shared = block_shared<SameIds>();
  const int64_t token = block_index().x, own = p.id(token);
  const int thread = static_cast<int>(thread_index().x);
  if (own < 0 || own >= p.vocab) {
    if (thread == 0 && block_index().y == 0) {
      note_unknown(p.error, OpId::embedding_backward, own, token, p.vocab);
    }
    return;
  }
  if (own == p.padding) return;
  float before = 0;
  for (int64_t i = thread; i < token && before == 0; i += kThreads) before = p.id(i) == own;
  if (BlockReduction<Wave>().max(before) != 0) return;
  const int64_t first = (int64_t{block_index().y} * kOwned * kThreads) + thread;
  float sums[kOwned] = {};
  for (int64_t begin = token; begin < p.tokens; begin += kThreads) {
    const int64_t mine = begin + thread;
    block_barrier();  // the flags before these have been read
    shared.same[thread] = mine < p.tokens && p.id(mine) == own;
    block_barrier();
    for (int i = 0; i < kThreads; ++i) {
      if (!shared.same[i]) continue;
      const T* row = p.d_out + p.d_out_rows.offset(begin + i);
#pragma unroll
      for (int j = 0; j < kOwned; ++j) {
        const int64_t c = first + j * kThreads;
        if (c < p.columns) sums[j] += to_float(row[c]);
      }
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
  with_storage(kOp, d_weight.dtype(), [&]<class T>(T) {
    const TableOperands<T> p{d_weight.data<T>(),
                             d_out.data<T>(),
                             rows_of(kOp, d_out),
                             Ids(ids),
                             rows_of(kOp, ids),
                             Divisor(std::max<int64_t>(1, ids.dim(-1))),
                             ids.numel(),
                             d_weight.stride(0),
                             d_weight.dim(0),
                             d_weight.dim(1),
                             padding,
                             static_cast<float>(scale),
                             id_error()};
    if (d_weight.numel() > 0) {
      launch_overlapped<zero_table<T>>(kOp, {grid_of_rows(kOp, p.vocab)}, {kThreads}, 0, stream(),
                                       p);
    }
    if (p.tokens == 0) return;
    const unsigned tiles = grid_for(p.columns, kThreads * kOwned);
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<sum_tokens<T, Wave>>(kOp, {grid_of_rows(kOp, p.tokens), tiles}, {kThreads},
                                             0, stream(), p);
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
