// The gradients of Mamba2's depthwise causal convolution. x, d_out, d_x [B, T, C], weight, d_weight
// [C, 1, K].
//
// Three kernels: the gradient by the forward's sum, in float32; by x, an element a thread; by
// weight and bias, where a thread owns a channel and a tap and goes through kChunk tokens, whose
// sums are then added up in order (column_sums.h).
#include <algorithm>

#include "kernels/gpu/column_sums.h"
#include "kernels/gpu/float_arithmetic.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 64;

template <class T>
struct ConvBackwardOperands {
  T* d_x;
  const T* x;
  const T* d_out;
  const T* weight;
  const T* bias;   // null: none
  float* through;  // [B, T, C]: the gradient by the forward's sum
  float* sums;     // [K + 1, B chunks, C]: of the weight's taps and of the bias
  int64_t d_x_stride[2], x_stride[2], d_out_stride[2], weight_stride;
  int64_t tokens, channels, chunks, blocks, width, total;
  Divisor by_channels, by_tokens;
  bool has_function;
  Activation function;

  // Row `t` of batch row b.
  __device__ const T* row_of_x(int64_t b, int64_t t) const {
    return x + b * x_stride[0] + t * x_stride[1];
  }
};

// f'(z) d_out. A template: nvcc 13 refuses formulas of an arithmetic that it knows already.
template <class M>
__device__ float through_function(const M& m, Activation function, float z, float d) {
  switch (function) {
    case Activation::silu: return formulas::silu_backward::of(m, z, d);
    case Activation::gelu: return formulas::gelu_backward::of(m, z, d);
    case Activation::gelu_tanh: return formulas::gelu_tanh_backward::of(m, z, d);
    case Activation::tanh: return formulas::tanh_backward::of(m, z, d);
  }
  return d;
}

template <class T>
__global__ void __launch_bounds__(kThreads) conv_through(ConvBackwardOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.by_channels), row = divide(at.quotient, p.by_tokens);
  const int64_t c = at.remainder, b = row.quotient, t = row.remainder;
  float d = to_float(p.d_out[b * p.d_out_stride[0] + t * p.d_out_stride[1] + c]);
  if (p.has_function) {
    float z = p.bias ? to_float(p.bias[c]) : 0;
    for (int64_t k = 0; k < p.width; ++k) {
      const int64_t past = t - p.width + 1 + k;
      if (past < 0) continue;
      z = fused_multiply_add(to_float(p.weight[c * p.weight_stride + k]),
                             to_float(p.row_of_x(b, past)[c]), z);
    }
    d = through_function(FloatArithmetic<float>(0, 0), p.function, rounded<T>(z), d);
  }
  p.through[i] = d;
}

template <class T>
__global__ void __launch_bounds__(kThreads) conv_by_x(ConvBackwardOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.by_channels), row = divide(at.quotient, p.by_tokens);
  const int64_t c = at.remainder, t = row.remainder;
  float sum = 0;
  for (int64_t k = 0; k < p.width; ++k) {
    const int64_t later = t + p.width - 1 - k;
    if (later >= p.tokens) continue;
    sum = fused_multiply_add(to_float(p.weight[c * p.weight_stride + k]),
                             p.through[i + (later - t) * p.channels], sum);
  }
  p.d_x[row.quotient * p.d_x_stride[0] + t * p.d_x_stride[1] + c] = from_float<T>(sum);
}

// grid: channels, blocks of tokens, taps and the bias.
template <class T>
__global__ void __launch_bounds__(kThreads) conv_by_weight(ConvBackwardOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t c = int64_t{kThreads} * block_index().x + thread_index().x;
  const int64_t k = block_index().y;
  if (c >= p.channels) return;
  for (int64_t block = block_index().z; block < p.blocks; block += grid_size().z) {
    const int64_t b = block / p.chunks, begin = block % p.chunks * kChunk;
    const int64_t end = begin + kChunk < p.tokens ? begin + kChunk : p.tokens;
    float sum = 0;
    for (int64_t t = begin; t < end; ++t) {
      const float d = p.through[(b * p.tokens + t) * p.channels + c];
      const int64_t past = t - p.width + 1 + k;
      if (k == p.width) sum += d;
      else if (past >= 0) sum = fused_multiply_add(d, to_float(p.row_of_x(b, past)[c]), sum);
    }
    p.sums[(k * p.blocks + block) * p.channels + c] = sum;
  }
}

}  // namespace

void GpuOps::do_causal_conv1d_backward(const Tensor& d_x, const Tensor& d_weight,
                                       const Tensor& d_bias, const Tensor& x, const Tensor& weight,
                                       const Tensor& bias, const Tensor& d_out,
                                       std::optional<Activation> function) {
  constexpr const char* kOp = "causal_conv1d_backward";
  Arena::Scope scope(arena());
  const int64_t batch = x.dim(0), tokens = x.dim(1), channels = x.dim(2), width = weight.dim(2);
  if (channels == 0) return;
  with_storage(kOp, x.dtype(), [&]<class T>(T) {
    ConvBackwardOperands<T> p{};
    p.d_x = d_x.data<T>();
    p.x = x.data<T>();
    p.d_out = d_out.data<T>();
    p.weight = weight.data<T>();
    p.bias = bias.defined() ? bias.data<T>() : nullptr;
    for (int axis = 0; axis < 2; ++axis) {
      p.d_x_stride[axis] = d_x.stride(axis);
      p.x_stride[axis] = x.stride(axis);
      p.d_out_stride[axis] = d_out.stride(axis);
    }
    p.weight_stride = weight.stride(0);
    p.tokens = tokens;
    p.channels = channels;
    p.width = width;
    p.chunks = (tokens + kChunk - 1) / kChunk;
    p.blocks = batch * p.chunks;
    p.total = divisible(kOp, x.numel());
    p.by_channels = Divisor(channels);
    p.by_tokens = Divisor(std::max<int64_t>(1, tokens));
    p.has_function = function.has_value();
    p.function = function.value_or(Activation::silu);
    const auto scratch = [&](const Shape& shape) {
      return arena().take(DType::f32, shape).template data<float>();
    };
    p.through = scratch({std::max<int64_t>(1, p.total)});
    p.sums = scratch({width + 1, std::max<int64_t>(1, p.blocks), channels});
    if (p.total > 0) {
      const unsigned grid = grid_for(p.total, kThreads);
      launch_overlapped<conv_through<T>>(kOp, {grid}, {kThreads}, 0, stream(), p);
      launch_overlapped<conv_by_x<T>>(kOp, {grid}, {kThreads}, 0, stream(), p);
    }
    if (!d_weight.defined() && !d_bias.defined()) return;
    if (p.total > 0) {
      const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.blocks, 65535));
      const Dim grid{grid_for(channels, kThreads), static_cast<unsigned>(width + 1), blocks};
      launch_overlapped<conv_by_weight<T>>(kOp, grid, {kThreads}, 0, stream(), p);
    }
    const auto sums_of = [&](int64_t k) { return p.sums + k * p.blocks * channels; };
    for (int64_t k = 0; d_weight.defined() && k < width; ++k) {
      add_column_sums(*this, kOp, d_weight.data<T>() + k, d_weight.stride(0), sums_of(k), p.blocks,
                      channels);
    }
    if (d_bias.defined()) {
      add_column_sums(*this, kOp, d_bias.data<T>(), 1, sums_of(width), p.blocks, channels);
    }
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
