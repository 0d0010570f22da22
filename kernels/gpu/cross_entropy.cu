// Cross entropy and its gradient, of logits and of a head's in chunks. logits, d_logits [N, V],
// labels [N].
//
// A block owns a row and reads it twice, or for the gradient three times, of which the caches keep
// what they can. The rows' losses, and how many rows count, are added up by one more block, in an
// order that never varies. An unknown label counts as ignored.
#include <algorithm>

#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/rows.h"
#include "kernels/ops/logit_loss.h"

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
  int64_t loss_stride, stride, d_stride, rows, columns, ignored;
  OpId op;
  IdError* error;

  __device__ bool counts(int64_t label) const {
    return label != ignored && label >= 0 && label < columns;
  }
};

// The maximum of a row, and exp(logits - maximum): the sum without the label's, and that. What
// comes of the label is its share less 1: minus the others' share, in which nothing cancels.
struct LogSumExp {
  float largest, others, of_label;
  __device__ float sum() const { return others + of_label; }
};
template <class T, int Wave>
__device__ LogSumExp log_sum_exp(BlockReduction<Wave>& block, const T* row, int64_t columns,
                                 int64_t label) {
  float largest = -INFINITY, others = 0;
  for (int64_t i = thread_index().x; i < columns; i += kThreads) {
    const float x = to_float(row[i]);
    largest = x > largest || x != x ? x : largest;
  }
  largest = block.max(largest);
  const float shift = largest == -INFINITY ? 0.0f : largest;
  for (int64_t i = thread_index().x; i < columns; i += kThreads) {
    if (i != label) others += expf(to_float(row[i]) - shift);
  }
  return {shift, block.sum(others), expf(to_float(row[label]) - shift)};
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
  const LogSumExp all = log_sum_exp<T, Wave>(block, logits, p.columns, label);
  if (first) p.losses[row] = all.largest - to_float(logits[label]) + logf(all.sum());
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
    if (mean) sum += p.losses[i * p.loss_stride];
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
  const LogSumExp all = log_sum_exp<T, Wave>(block, logits, p.columns, label);
  const float factor = *p.d_loss / *p.losses, reciprocal = 1.0f / all.sum();
  for (int64_t i = thread_index().x; i < p.columns; i += kThreads) {
    const float share = expf(to_float(logits[i]) - all.largest) * reciprocal;
    to[i] = from_float<T>((i == label ? -all.others * reciprocal : share) * factor);
  }
}

// Some rows of a head's logits, from first_row on, or some of their columns, from first_column on.
template <class T>
struct LogitChunk {
  EntropyOperands<T> p;  // of these rows, and all columns
  float* stats;          // [rows, 4]
  const float* count;    // how many rows count, in all
  int64_t first_row, first_column, width;
};

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) chunk_statistics(LogitChunk<T> c) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t row = block_index().x, label = c.p.labels[row];
  const bool first = thread_index().x == 0;
  if (!c.p.counts(label)) {
    if (first && label != c.p.ignored) {
      note_unknown(c.p.error, c.p.op, label, c.first_row + row, c.p.columns);
    }
    return;
  }
  const T* logits = c.p.logits + row * c.p.stride;
  const LogSumExp all = log_sum_exp<T, Wave>(block, logits, c.p.columns, label);
  if (!first) return;
  float* to = c.stats + LogitLossKernels::kStatistics * row;
  to[0] = all.largest;
  to[1] = all.others;
  to[2] = all.of_label;
  to[3] = all.largest - to_float(logits[label]) + logf(all.sum());
}

// In place, or not.
template <class T>
__global__ void __launch_bounds__(kThreads) chunk_gradients(LogitChunk<T> c) {
  wait_for_previous_kernel();
  const int64_t row = block_index().x, label = c.p.labels[row];
  const bool counts = c.p.counts(label);
  const T* logits = c.p.logits + row * c.p.stride;
  T* to = c.p.d_logits + row * c.p.d_stride;
  const float* stats = c.stats + LogitLossKernels::kStatistics * row;
  const float largest = counts ? stats[0] : 0, others = counts ? stats[1] : 0,
              reciprocal = counts ? 1.0f / (others + stats[2]) : 0;
  const float factor = counts ? *c.p.d_loss / *c.count : 0;
  for (int64_t i = thread_index().x; i < c.width; i += kThreads) {
    const float share = counts ? expf(to_float(logits[i]) - largest) * reciprocal : 0;
    const bool hit = counts && c.first_column + i == label;
    to[i] = from_float<T>((hit ? -others * reciprocal : share) * factor);
  }
}

template <class T>
EntropyOperands<T> entropy_operands(OpId op, const Tensor& logits, const Tensor& labels,
                                    int64_t ignored, float* losses, IdError* error) {
  EntropyOperands<T> p{};
  p.logits = logits.data<T>();
  p.labels = labels.data<int64_t>();
  p.losses = losses;
  p.loss_stride = 1;
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

namespace {

// A head's logits, in chunks of one storage dtype.
template <class T>
class HeadChunks {
 public:
  HeadChunks(OpId op, const Tensor& weight, const Tensor& labels, const LogitLossParams& params,
             IdError* error) {
    whole_.labels = labels.data<int64_t>();
    whole_.rows = labels.dim(0);
    whole_.columns = weight.dim(0);
    whole_.ignored = params.ignored;
    whole_.op = op;
    whole_.error = error;
  }

  // All rows, without logits.
  const EntropyOperands<T>& whole() const { return whole_; }
  LogitChunk<T> of(const Tensor& stats, const Tensor& logits, const Tensor& labels) const {
    LogitChunk<T> c{whole_, stats.data<float>(), nullptr, 0, 0, logits.dim(1)};
    c.p.logits = logits.data<T>();
    c.p.stride = logits.stride(0);
    c.p.labels = labels.data<int64_t>();
    c.p.rows = labels.dim(0);
    c.first_row = c.p.labels - whole_.labels;
    return c;
  }
  void find_statistics(const Tensor& stats, const Tensor& logits, const Tensor& labels,
                       Stream stream) const {
    const LogitChunk<T> c = of(stats, logits, labels);
    const char* op = name_of(whole_.op).data();
    with_wave(stream, [&]<int Wave>() {
      launch_overlapped<chunk_statistics<T, Wave>>(op, {grid_of_rows(op, c.p.rows)}, {kThreads}, 0,
                                                   stream, c);
    });
  }

 private:
  EntropyOperands<T> whole_{};
};

}  // namespace

void GpuOps::do_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                                     const Tensor& labels, const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy;
  const char* op = name_of(kOp).data();
  with_storage(op, x.dtype(), [&]<class T>(T) {
    const HeadChunks<T> head(kOp, weight, labels, params, id_error());
    LogitLossKernels kernels{[&](const Tensor& stats, const Tensor& logits, const Tensor& rows) {
      head.find_statistics(stats, logits, rows, stream());
    }};
    kernels.loss = [&](const Tensor& stats) {
      EntropyOperands<T> p = head.whole();
      p.losses = stats.data<float>() + 3;
      p.loss_stride = LogitLossKernels::kStatistics;
      with_wave(stream(), [&]<int Wave>() {
        launch_overlapped<add_losses<T, Wave>>(op, {1}, {kThreads}, 0, stream(), p,
                                               loss.data<float>(), true);
      });
    };
    chunked_linear_cross_entropy(x, weight, labels, params, kernels);
  });
}

void GpuOps::do_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                              const Tensor& x, const Tensor& weight,
                                              const Tensor& labels, const Tensor& d_loss,
                                              const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy_backward;
  const char* op = name_of(kOp).data();
  Arena::Scope scope(arena());
  auto* count = arena().take(DType::f32, {1}).template data<float>();
  with_storage(op, x.dtype(), [&]<class T>(T) {
    const HeadChunks<T> head(kOp, weight, labels, params, id_error());
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<add_losses<T, Wave>>(op, {1}, {kThreads}, 0, stream(), head.whole(), count,
                                             false);
    });
    LogitLossKernels kernels{[&](const Tensor& stats, const Tensor& logits, const Tensor& rows) {
      head.find_statistics(stats, logits, rows, stream());
    }};
    kernels.gradients = [&](const Tensor& d, const Tensor& logits, const Tensor& stats,
                            const Tensor& rows, int64_t first) {
      LogitChunk<T> c = head.of(stats, logits, rows);
      c.p.d_logits = d.data<T>();
      c.p.d_stride = d.stride(0);
      c.p.d_loss = d_loss.data<float>();
      c.count = count;
      c.first_column = first;
      launch_overlapped<chunk_gradients<T>>(op, {grid_of_rows(op, c.p.rows)}, {kThreads}, 0,
                                            stream(), c);
    };
    chunked_linear_cross_entropy_backward(d_x, d_weight, x, weight, labels, params, kernels);
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
