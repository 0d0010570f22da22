// Cross entropy and its gradient.
//
// logits, d_logits [N, V], labels [N]. One unit of work is a row, read twice: for its maximum and
// for the sum of exponentials (float32 lanes within a piece, float64 across pieces); the gradient
// reads it a third time, and computes them again.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/labels.h"

namespace plumb::cpu {
namespace {

struct LogitRow {
  const RowFunctions& rows;
  const Format& storage;
  const char* logits;
  int64_t width;
  float shift = 0;  // the maximum
  double sum = 0;   // of exp(logits - shift)

  LogitRow(const Format& format, const char* row, int64_t columns)
      : rows(format.rows()), storage(format), logits(row), width(columns) {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    float max = lowest;
    pieces([&](int64_t at, int64_t n) { max = rows.max(storage.at(logits, at), max, n); });
    shift = max == lowest ? 0 : max;
    float buffer[kPiece];
    pieces([&](int64_t at, int64_t n) { sum += exponentials(buffer, at, n); });
  }
  template <class Visit>
  void pieces(const Visit& visit) const {
    for (int64_t at = 0; at < width; at += kPiece) visit(at, std::min(kPiece, width - at));
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
    const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width);
    losses.data<float>()[row] = static_cast<float>(e.shift - e.logit(label) + std::log(e.sum));
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
    float buffer[kPiece];
    if (label == ignored) {
      std::fill_n(buffer, kPiece, 0.0f);
      for (int64_t at = 0; at < width; at += kPiece) {
        storage.rows().narrow(storage.at(to, at), buffer, std::min(kPiece, width - at));
      }
      return;
    }
    const LogitRow e(storage, storage.at(logits, row * logits.stride(0)), width);
    const double scale = factor / e.sum;
    e.pieces([&](int64_t at, int64_t n) {
      e.exponentials(buffer, at, n);
      const bool hit = label >= at && label < at + n;
      const double of_label = hit ? buffer[label - at] : 0;
      simd_->floats().scale(buffer, buffer, static_cast<float>(scale), n);
      if (hit) buffer[label - at] = static_cast<float>((of_label / e.sum - 1) * factor);
      storage.rows().narrow(storage.at(to, at), buffer, n);
    });
  });
}

}  // namespace plumb::cpu
