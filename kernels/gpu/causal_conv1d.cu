// Depthwise causal convolution of Mamba2, with its activation and its state. x [B, T, C],
// weight [C, 1, K], states [B, C, K].
//
// Memory-bound. A thread owns a channel of a segment of tokens; neighbours have neighbouring
// channels, the K - 1 older columns come from the caches. Rounds after the sum and after the
// activation. The first segment's thread alone touches the states of its channel, so that both may
// be one tensor.
#include <algorithm>

#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kAtOnce = 4;  // columns that are on their way together
constexpr int64_t kSegment = 16;

template <class T>
struct ConvOperands {
  T* out;
  const T* x;
  const T* weight;
  const T* bias;    // null: none
  const T* before;  // null: zeros
  T* after;         // null: not wanted
  int64_t out_row, out_token, x_row, x_token, weight_channel;
  int64_t before_row, before_channel, after_row, after_channel;
  int64_t tokens, width, segment, total;
  Divisor channels, segments;
};

// Column `column` of before ++ x. Chooses the address, not the path: loads need not wait in turn.
template <class T>
__device__ inline T past(const ConvOperands<T>& p, int64_t row, int64_t channel, int64_t column) {
  const T* place = p.x + row * p.x_row + (column - p.width) * p.x_token + channel;
  if (column < p.width) {
    place =
        p.before ? p.before + row * p.before_row + channel * p.before_channel + column : nullptr;
  }
  return place ? *place : from_float<T>(0.0f);
}

template <class T, bool Activated, Activation Function>
__global__ void __launch_bounds__(kThreads) conv_channels(ConvOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t step = int64_t{kThreads} * grid_size().x;
  for (int64_t i = int64_t{kThreads} * block_index().x + thread_index().x; i < p.total; i += step) {
    const Division outer = divide(i, p.channels), place = divide(outer.quotient, p.segments);
    const int64_t channel = outer.remainder, row = place.quotient;
    const int64_t begin = place.remainder * p.segment;
    const int64_t end = begin + p.segment < p.tokens ? begin + p.segment : p.tokens;
    const T* weight = p.weight + channel * p.weight_channel;
    const float bias = p.bias ? to_float(p.bias[channel]) : 0.0f;
    for (int64_t t = begin; t < end; ++t) {
      float sum = bias;
      for (int64_t first = 0; first < p.width; first += kAtOnce) {
        float taps[kAtOnce], columns[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int64_t k = first + j < p.width ? first + j : p.width - 1;
          taps[j] = to_float(weight[k]);
          columns[j] = to_float(past(p, row, channel, t + 1 + k));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (first + j < p.width) sum = fused_multiply_add(taps[j], columns[j], sum);
        }
      }
      if constexpr (Activated) sum = activate<T, Function>(rounded<T>(sum));
      p.out[row * p.out_row + t * p.out_token + channel] = from_float<T>(sum);
    }
    if (begin > 0 || !p.after) continue;
    T* after = p.after + row * p.after_row + channel * p.after_channel;
    for (int64_t first = 0; first < p.width; first += kAtOnce) {
      T columns[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int64_t k = first + j < p.width ? first + j : p.width - 1;
        columns[j] = past(p, row, channel, p.tokens + k);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j < p.width) after[first + j] = columns[j];
      }
    }
  }
}

}  // namespace

void GpuOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                              const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                              std::optional<Activation> function) {
  settle_for("channels");
  with_storage("causal_conv1d", x.dtype(), [&]<class T>(T) {
    ConvOperands<T> p{};
    p.out = out.data<T>();
    p.out_row = out.stride(0);
    p.out_token = out.stride(1);
    p.x = x.data<T>();
    p.x_row = x.stride(0);
    p.x_token = x.stride(1);
    p.weight = weight.data<T>();
    p.weight_channel = weight.stride(0);
    if (bias.defined()) p.bias = bias.data<T>();
    if (state_before.defined()) {
      p.before = state_before.data<T>();
      p.before_row = state_before.stride(0);
      p.before_channel = state_before.stride(1);
    }
    if (state_after.defined()) {
      p.after = state_after.data<T>();
      p.after_row = state_after.stride(0);
      p.after_channel = state_after.stride(1);
    }
    p.tokens = x.dim(1);
    p.width = weight.dim(2);
    p.segment = std::max(kSegment, p.width);
    const int64_t segments = std::max<int64_t>(1, (p.tokens + p.segment - 1) / p.segment);
    p.channels = Divisor(x.dim(2));
    p.segments = Divisor(segments);
    p.total = divisible("causal_conv1d", x.dim(0) * x.dim(2) * segments);
    if (p.total == 0) return;
    const auto go = [&]<bool Activated, Activation Function>() {
      constexpr auto kKernel = conv_channels<T, Activated, Function>;
      launch_overlapped<kKernel>("causal_conv1d", {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                 stream(), p);
    };
    if (!function) return go.template operator()<false, Activation::silu>();
    with_activation(*function, [&]<Activation F>() { go.template operator()<true, F>(); });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
