// group_norm. x [B, C, *]; weight and bias [C].
//
// A block owns a group of a batch row and reads it three times, of which the caches keep what they
// can: mean, squared deviations from it, result. Neighbouring threads read neighbouring elements.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/reduce.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;

template <class T>
struct GroupOperands {
  T* out;
  Rows out_rows;
  const T* x;
  Rows x_rows;
  const T* weight;  // null: none
  const T* bias;    // null: none
  Divisor width, rows_of_channel, channels;
  int64_t rows;   // of a group
  int64_t terms;  // elements of a group
  float reciprocal_of_terms, eps;
};

template <class T, int Wave>
__global__ void __launch_bounds__(kThreads) group_norm_groups(GroupOperands<T> p) {
  wait_for_previous_kernel();
  BlockReduction<Wave> block;
  const int64_t first = block_index().x * p.rows;
  const auto each = [&](auto visit) {
    for (int64_t i = thread_index().x; i < p.terms; i += kThreads) {
      const Division at = divide(i, p.width);
      const int64_t row = first + at.quotient;
      visit(row, at.remainder, to_float(p.x[p.x_rows.offset(row) + at.remainder]));
    }
  };
  float sum = 0, squares = 0;
  each([&](int64_t, int64_t, float x) { sum += x; });
  const float mean = block.sum(sum) * p.reciprocal_of_terms;
  each([&](int64_t, int64_t, float x) {
    squares = fused_multiply_add(x - mean, x - mean, squares);
  });
  const float factor = reciprocal_sqrt(block.sum(squares) * p.reciprocal_of_terms + p.eps);
  each([&](int64_t row, int64_t column, float x) {
    const int64_t channel = divide(divide(row, p.rows_of_channel).quotient, p.channels).remainder;
    const float weight = p.weight ? to_float(p.weight[channel]) : 1;
    const float bias = p.bias ? to_float(p.bias[channel]) : 0;
    const float y = fused_multiply_add((x - mean) * factor, weight, bias);
    p.out[p.out_rows.offset(row) + column] = from_float<T>(y);
  });
}

}  // namespace

void GpuOps::do_group_norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, const GroupNormParams& params) {
  constexpr const char* kOp = "group_norm";
  if (x.numel() == 0) return;
  const int axes = std::min(dense_axes(x, out), x.rank() - 2);
  with_storage(kOp, x.dtype(), [&]<class T>(T) {
    GroupOperands<T> p{};
    p.out = out.data<T>();
    p.out_rows = rows_of(kOp, out, axes);
    p.x = x.data<T>();
    p.x_rows = rows_of(kOp, x, axes);
    p.weight = weight.defined() ? weight.data<T>() : nullptr;
    p.bias = bias.defined() ? bias.data<T>() : nullptr;
    const int64_t groups = x.dim(0) * params.groups, channels = x.dim(1);
    const int64_t rows = divisible(kOp, OuterAxes(x, axes).count);
    p.width = Divisor(x.numel() / rows);
    p.rows_of_channel = Divisor(rows / (x.dim(0) * channels));
    p.channels = Divisor(channels);
    p.rows = rows / groups;
    p.terms = divisible(kOp, x.numel() / groups);
    p.reciprocal_of_terms = 1.0f / static_cast<float>(p.terms);
    p.eps = static_cast<float>(params.eps);
    with_wave(stream(), [&]<int Wave>() {
      launch_overlapped<group_norm_groups<T, Wave>>(kOp, {grid_of_rows(kOp, groups)}, {kThreads}, 0,
                                                    stream(), p);
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
