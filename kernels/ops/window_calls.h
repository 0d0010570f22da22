// Calls of ops that look at windows of the last two axes: convolutions and pools; and which
// elements those are.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

inline bool is_pool(OpId op) { return op == OpId::max_pool2d || op == OpId::avg_pool2d; }
inline bool is_transposed(OpId op) {
  return op == OpId::conv_transpose1d || op == OpId::conv_transpose2d;
}
inline bool is_convolution(OpId op) {
  return op == OpId::conv1d || op == OpId::conv2d || is_transposed(op);
}

// The windows of one axis.
struct Windows {
  int64_t extent, stride, padding, dilation;  // extent: of the input's axis
  bool transposed;                            // the input's elements are what windows belong to

  // What the `at`-th result takes by this tap; negative: none, it is outside or between elements.
  constexpr int64_t source(int64_t at, int64_t tap) const {
    int64_t place = at * (transposed ? 1 : stride);
    place += transposed ? padding - tap * dilation : tap * dilation - padding;
    if (transposed && place >= 0) place = place % stride == 0 ? place / stride : -1;
    return place < extent ? place : -1;
  }
};

// Of all convolutions: those of one axis have one of 1 in front.
struct ConvCall {
  const OpRow& row;
  Tensor out, x, weight;
  const Tensor& bias;
  ConvParams params;

  Windows windows(int axis) const {
    const auto at = static_cast<size_t>(axis);
    return {x.dim(2 + axis), params.stride[at], params.padding[at], params.dilation[at],
            transposed()};
  }
  bool transposed() const { return is_transposed(row.id); }
  // Of a group.
  int64_t inputs() const { return x.dim(1) / params.groups; }
  int64_t outputs() const { return out.dim(1) / params.groups; }
  int64_t terms() const { return inputs() * weight.dim(2) * weight.dim(3); }
  // Axes of the weight.
  int output_axis() const { return transposed() ? 1 : 0; }
  int input_axis() const { return transposed() ? 0 : 1; }
};

struct PoolCall {
  const OpRow& row;
  const Tensor& out;
  const Tensor& x;
  PoolParams params;

  bool is_mean() const { return row.id == OpId::avg_pool2d; }
  Windows windows(int axis) const {
    const auto at = static_cast<size_t>(axis);
    return {x.dim(2 + axis), params.stride[at], params.padding[at], 1, false};
  }
};

// What a mean over so many elements of x is divided by.
inline constexpr int64_t divisor_of_mean(const PoolParams& params, int64_t elements) {
  return params.counts_padding ? params.kernel[0] * params.kernel[1] : elements;
}

// Of upsample_nearest2d: how many elements a step is, and which element is the `at`-th result.
inline constexpr float nearest_scale(int64_t from, int64_t to) {
  return static_cast<float>(from) / static_cast<float>(to);
}
inline constexpr int64_t nearest_source(int64_t at, float scale, int64_t from) {
  const auto place = static_cast<int64_t>(static_cast<float>(at) * scale);
  return place < from ? place : from - 1;
}

}  // namespace plumb
