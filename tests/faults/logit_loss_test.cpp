// What kernels of a head's cross entropy in chunks get wrong: the suite of ops sees each, and
// passes one that is right. The kernel is of doubles, and rounds nothing but its results: float32
// calls.
#include <algorithm>
#include <cmath>
#include <string>

#include "harness/ops/op_suite.h"
#include "tests/catch.h"
#include "tests/faults/faulty_device.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

enum class LogitFault {
  none,
  label_within_chunk,    // columns of a label count from the chunk's first one
  label_at_every_chunk,  // its column is taken once in each chunk
  last_row_of_chunk,     // is left out of d_weight
  last_column_of_chunk,  // is left out of d_x
  last_chunk_of_rows,    // alone is in d_weight
  sum_of_chunk,          // the exponentials' sum is that of a chunk's columns
  ignored_has_gradient,
  ignored_counts,  // in the mean
  chunk_mean,      // the mean is that of each chunk's rows
  cotangent_is_one,
  softcap_without_slope,
  scale_once,    // not in the gradient
  storage_sums,  // d_weight is rounded to bf16 after each chunk
};

struct NamedFault {
  const char* name;
  LogitFault fault;
};
constexpr NamedFault kLogitFaults[] = {
    {"label within its chunk", LogitFault::label_within_chunk},
    {"label in every chunk", LogitFault::label_at_every_chunk},
    {"last row of a chunk left out", LogitFault::last_row_of_chunk},
    {"last column of a chunk left out", LogitFault::last_column_of_chunk},
    {"last chunk of rows alone", LogitFault::last_chunk_of_rows},
    {"sum of a chunk's exponentials", LogitFault::sum_of_chunk},
    {"ignored labels have a gradient", LogitFault::ignored_has_gradient},
    {"ignored labels count in the mean", LogitFault::ignored_counts},
    {"mean over each chunk", LogitFault::chunk_mean},
    {"cotangent taken as 1", LogitFault::cotangent_is_one},
    {"softcap without its slope", LogitFault::softcap_without_slope},
    {"scale left out of the gradient", LogitFault::scale_once},
    {"sums over chunks in bf16", LogitFault::storage_sums},
};

// d_x, d_weight = linear_cross_entropy_backward in chunks of kRows rows and kColumns columns.
class HeadKernel {
 public:
  static constexpr size_t kRows = 3, kColumns = 5;

  HeadKernel(const OpCall& call, LogitFault fault)
      : fault_(fault),
        params_(call.get<LogitLossParams>()),
        x_(values_of(call.operand("x"))),
        weight_(values_of(call.operand("weight"))),
        labels_(values_of(call.operand("labels"))),
        rows_(labels_.size()),
        inner_(static_cast<size_t>(call.extent('K'))),
        vocabulary_(static_cast<size_t>(call.extent('V'))),
        d_loss_(values_of(call.operand("d_loss"))[0]) {
    if (is(LogitFault::cotangent_is_one)) d_loss_ = 1;
  }

  void run(Values& d_x, Values& d_weight) const {
    d_x.assign(rows_ * inner_, 0);
    d_weight.assign(vocabulary_ * inner_, 0);
    for (size_t row = 0; row < rows_; ++row) {
      if (is(LogitFault::last_chunk_of_rows) && row % kRows == 0) {
        std::fill(d_weight.begin(), d_weight.end(), 0);
      }
      add_row(row, d_x, d_weight);
      if (!is(LogitFault::storage_sums) || row % kRows != kRows - 1) continue;
      for (double& sum : d_weight) sum = round_to(DType::bf16, sum);
    }
  }

 private:
  bool is(LogitFault fault) const { return fault_ == fault; }
  bool ignored(size_t row) const { return labels_[row] == static_cast<double>(params_.ignored); }

  // How many rows the mean is over.
  double count(size_t row) const {
    size_t first = 0, end = rows_;
    if (is(LogitFault::chunk_mean)) {
      first = row / kRows * kRows;
      end = std::min(rows_, first + kRows);
    }
    double out = 0;
    for (size_t i = first; i < end; ++i) out += !ignored(i) || is(LogitFault::ignored_counts);
    return out;
  }

  bool is_hit(size_t row, size_t column) const {
    const double within = static_cast<double>(column % kColumns), label = labels_[row];
    if (is(LogitFault::label_within_chunk)) return within == label;
    if (is(LogitFault::label_at_every_chunk)) {
      return within == std::fmod(label, static_cast<double>(kColumns));
    }
    return static_cast<double>(column) == label;
  }

  void add_row(size_t row, Values& d_x, Values& d_weight) const {
    if (ignored(row) && !is(LogitFault::ignored_has_gradient)) return;
    Values uncapped(vocabulary_), exponentials(vocabulary_);
    double sum = 0;
    for (size_t v = 0; v < vocabulary_; ++v) {
      for (size_t k = 0; k < inner_; ++k)
        uncapped[v] += x_[row * inner_ + k] * weight_[v * inner_ + k];
      uncapped[v] *= params_.scale;
      const double capped = params_.softcap
                                ? std::tanh(uncapped[v] / *params_.softcap) * *params_.softcap
                                : uncapped[v];
      exponentials[v] = std::exp(capped);
      if (is(LogitFault::sum_of_chunk) && v % kColumns == 0) sum = 0;
      sum += exponentials[v];
    }
    for (size_t v = 0; v < vocabulary_; ++v) {
      double e = (exponentials[v] / sum - is_hit(row, v)) * d_loss_ / count(row);
      if (params_.softcap && !is(LogitFault::softcap_without_slope)) {
        const double share = std::tanh(uncapped[v] / *params_.softcap);
        e *= 1 - share * share;
      }
      if (!is(LogitFault::scale_once)) e *= params_.scale;
      const bool last_row = row % kRows == kRows - 1, last_column = v % kColumns == kColumns - 1;
      for (size_t k = 0; k < inner_; ++k) {
        if (!is(LogitFault::last_column_of_chunk) || !last_column) {
          d_x[row * inner_ + k] += e * weight_[v * inner_ + k];
        }
        if (!is(LogitFault::last_row_of_chunk) || !last_row) {
          d_weight[v * inner_ + k] += e * x_[row * inner_ + k];
        }
      }
    }
  }

  LogitFault fault_;
  LogitLossParams params_;
  Values x_, weight_, labels_;
  size_t rows_, inner_, vocabulary_;
  double d_loss_;
};

Hooks with_kernel(LogitFault fault) {
  const auto run = [fault](Call&, const OpCall& call) {
    Values d_x, d_weight;
    HeadKernel(call, fault).run(d_x, d_weight);
    put(call.operand("d_x"), d_x);
    if (call.operand("d_weight").defined()) put(call.operand("d_weight"), d_weight);
  };
  return {.op = OpId::linear_cross_entropy_backward, .whole = run};
}

// Of all calls in float32.
int64_t failed(LogitFault fault) {
  const auto device = open_device("cpu", 1), oracle = open_device("oracle", 1);
  FaultyDevice other(*device, with_kernel(fault));
  int64_t out = 0;
  for (const OpCase& it : cases_of(OpId::linear_cross_entropy_backward, DType::f32)) {
    const CheckpointResult result = run_op(it, other, *oracle);
    out += result.status == Status::fail;
    INFO(it.id() << ": " << result.reason);
    CHECK((result.status == Status::pass || result.status == Status::fail ||
           result.status == Status::blind));
  }
  return out;
}

TEST_CASE("a head's cross entropy in chunks: what goes wrong is seen, a right kernel passes") {
  CHECK(failed(LogitFault::none) == 0);
  for (const auto& [name, fault] : kLogitFaults) {
    INFO(name);
    CHECK(failed(fault) > 2);
  }
}

}  // namespace
}  // namespace plumb::harness::testing
