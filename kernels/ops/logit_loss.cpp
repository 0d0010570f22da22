// Argument checks, dispatch, composition and chunks of a head's logits and their cross entropy.
#include "kernels/ops/logit_loss.h"

#include <algorithm>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/fits.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

// As many rows of so many elements as fit.
int64_t rows_at_a_time(int64_t rows, int64_t width, int64_t elements) {
  constexpr int64_t kChunk = int64_t{1} << 25;
  return std::clamp<int64_t>((elements > 0 ? elements : kChunk) / width, 1, rows);
}

void require_params(const char* op, const LogitLossParams& params) {
  require(!params.softcap || *params.softcap > 0, op, "softcap is ", params.softcap.value_or(0),
          ", must be positive");
  require(params.chunk >= 0, op, "chunk is ", params.chunk, ", must not be negative");
}

}  // namespace

void Ops::linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                               const Tensor& labels, const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy;
  const CheckedCall call = checked<kOp>(loss, x, weight, labels);
  require_params(call.row.name, params);
  if (!runs_fused(kOp)) return compose_linear_cross_entropy(loss, x, weight, labels, params);
  dispatch<&Ops::linear_cross_entropy, &DeviceOps::do_linear_cross_entropy>(call, loss, x, weight,
                                                                            labels, params);
}

void Ops::linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                        const Tensor& weight, const Tensor& labels,
                                        const Tensor& d_loss, const LogitLossParams& params) {
  constexpr OpId kOp = OpId::linear_cross_entropy_backward;
  const CheckedCall call = checked<kOp>(d_x, d_weight, x, weight, labels, d_loss);
  require_params(call.row.name, params);
  if (!runs_fused(kOp)) {
    return compose_linear_cross_entropy_backward(d_x, d_weight, x, weight, labels, d_loss, params);
  }
  // Of logits, exponentials, d_x and d_weight.
  dispatch<&Ops::linear_cross_entropy_backward, &DeviceOps::do_linear_cross_entropy_backward>(
      kOp, call.storage, {x.dim(1), weight.dim(0), weight.dim(0), x.dim(0)}, d_x, d_weight, x,
      weight, labels, d_loss, params);
}

void Ops::make_logits(const Tensor& logits, const Tensor& uncapped, const Tensor& x,
                      const Tensor& weight, const LogitLossParams& params) {
  const Tensor& made = params.softcap ? uncapped : logits;
  linear(made, x, weight);
  if (params.scale != 1) scale(made, made, params.scale);
  if (params.softcap) softcap(logits, made, *params.softcap);
}

void Ops::leave_logits(const Tensor& gradient, const Tensor& uncapped,
                       const LogitLossParams& params) {
  if (params.softcap) {
    binary(OpId::softcap_backward, gradient, uncapped, gradient, *params.softcap);
  }
  if (params.scale != 1) scale(gradient, gradient, params.scale);
}

void Ops::compose_linear_cross_entropy(const Tensor& loss, const Tensor& x, const Tensor& weight,
                                       const Tensor& labels, const LogitLossParams& params) {
  Arena::Scope scope(arena_);
  const Tensor logits = arena_.take(x.dtype(), {x.dim(0), weight.dim(0)});
  make_logits(logits, logits, x, weight, params);
  cross_entropy(loss, logits, labels, params.ignored);
}

void Ops::compose_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                                const Tensor& x, const Tensor& weight,
                                                const Tensor& labels, const Tensor& d_loss,
                                                const LogitLossParams& params) {
  Arena::Scope scope(arena_);
  const auto take = [&] { return arena_.take(x.dtype(), {x.dim(0), weight.dim(0)}); };
  const Tensor logits = take(), uncapped = params.softcap ? take() : logits, gradient = take();
  make_logits(logits, uncapped, x, weight, params);
  cross_entropy_backward(gradient, logits, labels, d_loss, params.ignored);
  leave_logits(gradient, uncapped, params);
  linear_backward(d_x, d_weight, {}, x, weight, gradient);
}

void Ops::chunked_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& labels,
                                       const LogitLossParams& params,
                                       const LogitLossKernels& kernels) {
  const int64_t rows = x.dim(0), vocabulary = weight.dim(0);
  Arena::Scope scope(arena_);
  const Tensor stats =
      arena_.take(DType::f32, {std::max<int64_t>(rows, 1), LogitLossKernels::kStatistics});
  const int64_t most = rows > 0 ? rows_at_a_time(rows, vocabulary, params.chunk) : 0;
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t end = std::min(rows, at + most);
    Arena::Scope chunk(arena_);
    const Tensor logits = arena_.take(x.dtype(), {end - at, vocabulary});
    run_within(OpId::linear_cross_entropy,
               [&] { make_logits(logits, logits, x.slice(0, at, end), weight, params); });
    kernels.statistics(stats.slice(0, at, end), logits, labels.slice(0, at, end));
  }
  kernels.loss(stats);
}

// d_x needs all columns of a row and d_weight all rows of a column, each as one sum: logits are
// made once for chunks of rows and once for chunks of columns, unless one chunk has them all.
void Ops::chunked_linear_cross_entropy_backward(const Tensor& d_x, const Tensor& d_weight,
                                                const Tensor& x, const Tensor& weight,
                                                const Tensor& labels, const LogitLossParams& params,
                                                const LogitLossKernels& kernels) {
  constexpr OpId kOp = OpId::linear_cross_entropy_backward;
  const int64_t rows = x.dim(0), vocabulary = weight.dim(0);
  if (rows == 0) {
    if (d_weight.defined()) run_within(kOp, [&] { fill(d_weight, 0); });
    return;
  }
  Arena::Scope scope(arena_);
  const Tensor stats = arena_.take(DType::f32, {rows, LogitLossKernels::kStatistics});
  const auto run = [&](int64_t row, int64_t row_end, int64_t first, int64_t column_end,
                       bool by_rows, bool by_columns) {
    Arena::Scope chunk(arena_);
    const auto take = [&] { return arena_.take(x.dtype(), {row_end - row, column_end - first}); };
    const Tensor logits = take(), uncapped = params.softcap ? take() : logits;
    const Tensor gradient = logits, inputs = x.slice(0, row, row_end),
                 outputs = weight.slice(0, first, column_end),
                 of_rows = labels.slice(0, row, row_end), known = stats.slice(0, row, row_end);
    run_within(kOp, [&] { make_logits(logits, uncapped, inputs, outputs, params); });
    if (by_rows) kernels.statistics(known, logits, of_rows);
    kernels.gradients(gradient, logits, known, of_rows, first);
    run_within(kOp, [&] {
      leave_logits(gradient, uncapped, params);
      if (by_rows) gemm(d_x.slice(0, row, row_end), gradient, outputs, {}, {}, {});
      GemmParams transposed;
      transposed.transpose_a = true;
      if (by_columns) {
        gemm(d_weight.slice(0, first, column_end), gradient, inputs, {}, {}, transposed);
      }
    });
  };
  const int64_t most_rows = rows_at_a_time(rows, vocabulary, params.chunk);
  const bool at_once = most_rows == rows;
  for (int64_t at = 0; at < rows; at += most_rows) {
    run(at, std::min(rows, at + most_rows), 0, vocabulary, true, at_once && d_weight.defined());
  }
  if (at_once || !d_weight.defined()) return;
  const int64_t most_columns = rows_at_a_time(vocabulary, rows, params.chunk);
  for (int64_t at = 0; at < vocabulary; at += most_columns) {
    run(0, rows, at, std::min(vocabulary, at + most_columns), false, true);
  }
}

}  // namespace plumb
