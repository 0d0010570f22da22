// Cross entropy and its gradient, of logits and of a head's in chunks.
//
// logits, d_logits [N, V], labels [N]. One unit of work is a row, read twice: for its maximum and
// for the sum of exponentials (float32 lanes within a piece, float64 across pieces); the gradient
// reads it a third time, and computes them again, or, of some columns alone, has them in float32.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/labels.h"
#include "kernels/ops/logit_loss.h"

namespace plumb::cpu {
namespace {

// What comes of a row's label is its share less 1: minus the others' share, in which nothing
// cancels, and so their exponentials are added up by themselves.
struct LogitRow {
  const RowFunctions& rows;
  const Format& storage;
  const char* logits;
  int64_t width;
  float shift = 0;                  // the maximum
  double others = 0, of_label = 0;  // exp(logits - shift): the sum without the label's, and that

  LogitRow(const Format& format, const char* row, int64_t columns, int64_t label)
      : rows(format.rows()), storage(format), logits(row), width(columns) {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float max = lowest;
    pieces(0, width,
           [&](int64_t at, int64_t n) { max = rows.max(storage.at(logits, at), max, n); });
    shift = max == lowest ? 0 : max;
    float buffer[kPiece];
    const auto add = [&](int64_t at, int64_t n) { others += exponentials(buffer, at, n); };
    pieces(0, label, add);
    pieces(label + 1, width, add);
    of_label = exponentials(buffer, label, 1);
  }
  // Of some columns, by the statistics of the whole row (LogitLossKernels).
  LogitRow(const Format& format, const char* row, int64_t columns, const float* stats)
      : rows(format.rows()),
        storage(format),
        logits(row),
        width(columns),
        shift(stats[0]),
        others(stats[1]),
        of_label(stats[2]) {}
  double sum() const { return others + of_label; }
  double loss(int64_t label) const { return shift - logit(label) + std::log(sum()); }
  template <class Visit>
  void pieces(int64_t begin, int64_t end, const Visit& visit) const {
    for (int64_t at = begin; at < end; at += kPiece) visit(at, std::min(kPiece, end - at));
  }
  float exponentials(float* out, int64_t at, int64_t n) const {
    return rows.exp_sum(out, storage.at(logits, at), shift, n);
  }
  double logit(int64_t at) const {
    float out;
    storage.widen(&out, storage.at(logits, at), 1);
    return out;
  }
};

void write_zeros(const Format& storage, char* to, int64_t width) {
  constexpr float zeros[kPiece] = {};
  for (int64_t at = 0; at < width; at += kPiece) {
    storage.rows().narrow(storage.at(to, at), zeros, std::min(kPiece, width - at));
  }
}

// `label`: its column, which need not be one of these. `to` may be the logits.
void write_gradients(const LogitRow& e, char* to, int64_t label, double factor, const Simd& simd) {
  float buffer[kPiece];
  const double scale = factor / e.sum();
  e.pieces(0, e.width, [&](int64_t at, int64_t n) {
    e.exponentials(buffer, at, n);
    simd.floats().scale(buffer, buffer, static_cast<float>(scale), n);
    const bool hit = label >= at && label < at + n;
    if (hit) buffer[label - at] = static_cast<float>(-e.others * scale);
    e.storage.rows().narrow(e.storage.at(to, at), buffer, n);
  });
}

}  // namespace

void CpuOps::do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                              int64_t ignored) {
  const Format storage = format("cross_entropy", logits);
  const int64_t rows = labels.dim(0), width = logits.dim(1);
  const int64_t count = count_labels(OpId::cross_entropy, labels, width, ignored);
  Arena::Scope scope(arena());
  const Tensor losses = arena().take(DType::f32, {std::max<int64_t>(1, rows)});
  pool_.for_each(rows, 3 * static_cast<double>(width), [&](int64_t row, int) {
    const int64_t label = labels.data<int64_t>()[row];
    if (label == ignored) return;
    const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width, label);
    losses.data<float>()[row] = static_cast<float>(e.loss(label));
  });
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (labels.data<int64_t>()[row] != ignored) sum += losses.data<float>()[row];
  }
  *loss.data<float>() = static_cast<float>(sum / static_cast<double>(count));
}

void CpuOps::do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits,
                                       const Tensor& labels, const Tensor& d_loss,
                                       int64_t ignored) {
  const Format storage = format("cross_entropy_backward", logits);
  const int64_t rows = labels.dim(0), width = logits.dim(1);
  const int64_t count = count_labels(OpId::cross_entropy_backward, labels, width, ignored);
  const double factor = static_cast<double>(*d_loss.data<float>()) / static_cast<double>(count);
  pool_.for_each(rows, 5 * static_cast<double>(width), [&](int64_t row, int) {
    const int64_t label = labels.data<int64_t>()[row];
    char* to = storage.at(d_logits.data<char>(), row * d_logits.stride(0));
    if (label == ignored) return write_zeros(storage, to, width);
    const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width, label);
    write_gradients(e, to, label, factor, *simd_);
  });
}

void CpuOps::logit_statistics(const char* op, const Tensor& stats, const Tensor& logits,
                              const Tensor& labels, int64_t ignored) {
  const Format storage = format(op, logits);
  const int64_t width = logits.dim(1);
  pool_.for_each(logits.dim(0), 3 * static_cast<double>(width), [&](int64_t row, int) {
    const int64_t label = labels.data<int64_t>()[row];
    float* to = stats.data<float>() + row * stats.stride(0);
    if (label == ignored) return;
    const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width, label);
    to[0] = e.shift;
    to[1] = static_cast<float>(e.others);
    to[2] = static_cast<float>(e.of_label);
    to[3] = static_cast<float>(e.loss(label));
  });
}

// The logits of a chunk are rows as those of cross_entropy.
void CpuOps::do_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                                     const Tensor& labels, const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy;
  const int64_t count = count_labels(kOp, labels, weight.dim(0), params.ignored);
  require_storage(name_of(kOp).data(), x);
  LogitLossKernels kernels{[&](const Tensor& stats, const Tensor& logits, const Tensor& of_rows) {
    logit_statistics(name_of(kOp).data(), stats, logits, of_rows, params.ignored);
  }};
  kernels.loss = [&](const Tensor& stats) {
    double sum = 0;
    for (int64_t row = 0; row < labels.dim(0); ++row) {
      if (labels.data<int64_t>()[row] != params.ignored)
        sum += stats.data<float>()[LogitLossKernels::kStatistics * row + 3];
    }
    *loss.data<float>() = static_cast<float>(sum / static_cast<double>(count));
  };
  chunked_linear_cross_entropy(x, weight, labels, params, kernels);
  settle_for_simd();
}

void CpuOps::do_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                              const Tensor& x, const Tensor& weight,
                                              const Tensor& labels, const Tensor& d_loss,
                                              const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy_backward;
  const int64_t count = count_labels(kOp, labels, weight.dim(0), params.ignored);
  require_storage(name_of(kOp).data(), x);
  const double factor = static_cast<double>(*d_loss.data<float>()) / static_cast<double>(count);
  LogitLossKernels kernels{[&](const Tensor& stats, const Tensor& logits, const Tensor& of_rows) {
    logit_statistics(name_of(kOp).data(), stats, logits, of_rows, params.ignored);
  }};
  kernels.gradients = [&](const Tensor& d, const Tensor& logits, const Tensor& stats,
                          const Tensor& of_rows, int64_t first) {
    const Format storage = format(name_of(kOp).data(), logits);
    const int64_t width = logits.dim(1);
    pool_.for_each(logits.dim(0), 3 * static_cast<double>(width), [&](int64_t row, int) {
      const int64_t label = of_rows.data<int64_t>()[row];
      const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width,
                       stats.data<float>() + row * stats.stride(0));
      char* to = storage.at(d.data<char>(), row * d.stride(0));
      if (label == params.ignored) write_zeros(storage, to, width);
      else write_gradients(e, to, label - first, factor, *simd_);
    });
  };
  chunked_linear_cross_entropy_backward(d_x, d_weight, x, weight, labels, params, kernels);
  settle_for_simd();
}

}  // namespace plumb::cpu
