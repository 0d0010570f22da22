// Cross entropy and its gradient. logits, d_logits [N, V], labels [N].
//
// A block owns a row and reads it twice, or for the gradient three times, of which the caches keep
// what they can. The rows' losses, and how many rows count, are added up by one more block, in an
// order that never varies. An unknown label counts as ignored.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 512;

template <class T>
struct EntropyOperands {
  const T* logits;
  T* d_logits;
  const int64_t* labels;
  float* losses;        // [N], and how many rows count
  const float* d_loss;  // [1]
  int64_t stride, d_stride, rows, columns, ignored;
  OpId op;
  IdError* error;

  __device__ bool counts(int64_t label) const {
    return label != ignored && label >= 0 && label < columns;
  }
};

// The maximum of a row, and the sum of exp(logits - maximum).
struct LogSumExp {
  float largest, sum;
};
template <class T, int Wave>
__device__ LogSumExp log_sum_exp(BlockReduction<Wave>& block, const T* row, int64_t columns) {
  float largest = -INFINITY, sum = 0;
  for (int64_t i = thread_index().x; i < columns; i += kThreads) {
    const float x = to_float(row[i]);
    largest = x > largest || x != x ? x : largest;
  }
  largest = block.max(largest);
  const float shift = largest == -INFINITY ? 0.0f : largest;
  for (int64_t i = thread_index().x; i < columns; i += kThreads) {
    sum += expf(to_float(row[i]) - shift);
  }
  return {shift, block.sum(sum)};
}

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) row_losses(EntropyOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x, label = p.labels[row];
  const bool first = thread_index().x == 0;
  if (!p.counts(label)) {
    if (first) p.losses[row] = 0;
    if (first && label != p.ignored) note_unknown(p.error, p.op, label, row, p.columns);
    return;
  }
  const T* logits = p.logits + row * p.stride;
  const LogSumExp all = log_sum_exp<T, Wave>(block, logits, p.columns);
  if (first) p.losses[row] = all.largest - to_float(logits[label]) + logf(all.sum);
}

// One block. Of `mean` the loss, else how many rows count.
template <class T, int Wave>
__global__ void __launch_bounds__(kThreads)
    add_losses(EntropyOperands<T> p, float* out, bool mean) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  float sum = 0, count = 0;
  for (int64_t i = thread_index().x; i < p.rows; i += kThreads) {
    if (!p.counts(p.labels[i])) continue;
    if (mean) sum += p.losses[i];
    count += 1;
  }
  sum = block.sum(sum);
  count = block.sum(count);
  if (thread_index().x == 0) *out = mean ? sum / count : count;
}

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) row_gradients(EntropyOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x, label = p.labels[row];
  T* to = p.d_logits + row * p.d_stride;
  if (!p.counts(label)) {
    for (int64_t i = thread_index().x; i < p.columns; i += kThreads) to[i] = from_float<T>(0.0f);
    if (thread_index().x == 0 && label != p.ignored) {
      note_unknown(p.error, p.op, label, row, p.columns);
    }
    return;
  }
  const T* logits = p.logits + row * p.stride;
  const LogSumExp all = log_sum_exp<T, Wave>(block, logits, p.columns);
  const float factor = *p.d_loss / *p.losses, reciprocal = 1.0f / all.sum;
  for (int64_t i = thread_index().x; i < p.columns; i += kThreads) {
    const float share = expf(to_float(logits[i]) - all.largest) * reciprocal;
    to[i] = from_float<T>((i == label ? share - 1.0f : share) * factor);
  }
}

template <class T>
EntropyOperands<T> entropy_operands(OpId op, const Tensor& logits, const Tensor& labels,
                                    int64_t ignored, float* losses, IdError* error) {
  EntropyOperands<T> p{};
  p.logits = logits.data<T>();
  p.labels = labels.data<int64_t>();
  p.losses = losses;
  p.stride = logits.stride(0);
  p.rows = labels.dim(0);
  p.columns = logits.dim(1);
  p.ignored = ignored;
  p.op = op;
  p.error = error;
  return p;
}

}  // namespace

void GpuOps::do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                              int64_t ignored) {
  constexpr const char* kOp = "cross_entropy";
  Arena::Scope scope(arena());
  auto* losses =
      arena().take(DType::f32, {std::max<int64_t>(1, labels.dim(0))}).template data<float>();
  with_storage(kOp, logits.dtype(), [&]<class T>(T) {
    const auto p =
        entropy_operands<T>(OpId::cross_entropy, logits, labels, ignored, losses, id_error());
    with_wave(stream(), [&]<int Wave>() {
      if (p.rows > 0) {
        launch_overlapped<row_losses<T, Wave>>(kOp, {grid_of_rows(kOp, p.rows)}, {kThreads}, 0,
                                               stream(), p);
      }
      launch_overlapped<add_losses<T, Wave>>(kOp, {1}, {kThreads}, 0, stream(), p,
                                             loss.data<float>(), true);
    });
  });
}

void GpuOps::do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits,
                                       const Tensor& labels, const Tensor& d_loss,
                                       int64_t ignored) {
  constexpr const char* kOp = "cross_entropy_backward";
  if (labels.dim(0) == 0) return;
  Arena::Scope scope(arena());
  auto* count = arena().take(DType::f32, {1}).template data<float>();
  with_storage(kOp, logits.dtype(), [&]<class T>(T) {
    auto p = entropy_operands<T>(OpId::cross_entropy_backward, logits, labels, ignored, count,
                                 id_error());
    p.d_logits = d_logits.data<T>();
    p.d_stride = d_logits.stride(0);
    p.d_loss = d_loss.data<float>();
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<add_losses<T, Wave>>(kOp, {1}, {kThreads}, 0, stream(), p, count, false);
      launch_overlapped<row_gradients<T, Wave>>(kOp, {grid_of_rows(kOp, p.rows)}, {kThreads}, 0,
                                                stream(), p);
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
