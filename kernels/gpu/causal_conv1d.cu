// Depthwise causal convolution of Mamba2, with its activation and its state. x [B, T, C],
// weight [C, 1, K], states [B, C, K].
//
// Memory-bound. A thread owns a channel of a segment of tokens, or four where the width
// is four and alignment allows; neighbours have neighbouring channels, the K - 1 older columns come
// from the caches, or stay in registers. Rounds after the sum and after the activation. The
// first segment's thread alone touches the states of its channels, so that both may be one tensor.
#include <algorithm>

#include "kernels/gpu/functions.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kAtOnce = 4;  // columns that are on their way together
// Of conv_vectors: the only width, channels of a thread, tokens that are on their way together.
constexpr int kVectorThreads = 128, kWidth = 4, kChannels = 4, kTokens = 8;
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

// Column `column` of before ++ x. Selects the address, without a branch: loads overlap.
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

// The last kWidth columns of N channels.
template <class T, int N>
struct Columns {
  float v[kWidth][N] = {};

  // States and weights in memory: kWidth adjacent elements for each channel.
  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const Floats<T, N> part(load_vector<N>(from + i * N));
#pragma unroll
      for (int j = 0; j < N; ++j) v[(i * N + j) % kWidth][(i * N + j) / kWidth] = part[j];
    }
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float part[N];
#pragma unroll
      for (int j = 0; j < N; ++j) part[j] = v[(i * N + j) % kWidth][(i * N + j) / kWidth];
      store_vector(to + i * N, narrowed<T>(part));
    }
  }
  __device__ void push(const Vector<T, N>& column) {
#pragma unroll
    for (int k = 0; k + 1 < kWidth; ++k) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[k][j] = v[k + 1][j];
    }
    widen(column, v[kWidth - 1]);
  }
};

// The state after the last token, of the one before.
template <class T, int N>
__device__ inline void store_state(const ConvOperands<T>& p, Columns<T, N> state, const T* x,
                                   T* after) {
  for (int64_t t = p.tokens > kWidth ? p.tokens - kWidth : 0; t < p.tokens; ++t) {
    state.push(load_vector<N>(x + t * p.x_token));
  }
  state.store(after);
}

// channels: vectors of them.
template <class T, bool Activated, Activation Function>
__global__ void __launch_bounds__(kVectorThreads) conv_vectors(ConvOperands<T> p) {
  wait_for_previous_kernel();
  constexpr int N = kChannels;
  const int64_t i = int64_t{kVectorThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division outer = divide(i, p.channels), place = divide(outer.quotient, p.segments);
  const int64_t channel = outer.remainder * N, row = place.quotient;
  const int64_t begin = place.remainder * p.segment;
  const int64_t end = begin + p.segment < p.tokens ? begin + p.segment : p.tokens;
  const T* x = p.x + row * p.x_row + channel;
  T* out = p.out + row * p.out_row + channel;
  Columns<T, N> columns, taps;
  taps.load(p.weight + channel * kWidth);
  float bias[N] = {};
  if (p.bias) widen(load_vector<N>(p.bias + channel), bias);
  if (begin == 0) {
    if (p.before) columns.load(p.before + row * p.before_row + channel * kWidth);
    if (p.after) store_state(p, columns, x, p.after + row * p.after_row + channel * kWidth);
  } else {
    for (int64_t t = begin - kWidth + 1; t < begin; ++t) {
      columns.push(load_vector<N>(x + t * p.x_token));
    }
  }
  for (int64_t first = begin; first < end; first += kTokens) {
    Vector<T, N> fresh[kTokens];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      const int64_t t = first + j < end ? first + j : end - 1;
      fresh[j] = load_vector<N>(x + t * p.x_token);
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      if (first + j >= end) break;
      columns.push(fresh[j]);
      float y[N];
#pragma unroll
      for (int c = 0; c < N; ++c) {
        y[c] = bias[c];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          y[c] = fused_multiply_add(taps.v[k][c], columns.v[k][c], y[c]);
        }
        if constexpr (Activated) y[c] = activate<T, Function>(rounded<T>(y[c]));
      }
      store_vector(out + (first + j) * p.out_token, narrowed<T>(y));
    }
  }
}

// Whether conv_vectors can read the rows of x and out, and weights and states: kWidth elements of
// each channel, without gaps.
bool channels_are_vectors(const Tensor& out, const Tensor& state_after, const Tensor& x,
                          const Tensor& weight, const Tensor& bias, const Tensor& state_before) {
  const int64_t bytes = kChannels * size_of(x.dtype());
  const auto aligned = [&](const Tensor& t) {
    return !t.defined() ||
           reinterpret_cast<uintptr_t>(t.raw()) % static_cast<uintptr_t>(bytes) == 0;
  };
  const auto dense = [&](const Tensor& t) {
    return !t.defined() ||
           (aligned(t) && t.stride(1) == kWidth && (t.dim(0) == 1 || t.stride(0) % kChannels == 0));
  };
  return weight.dim(2) == kWidth && aligned(weight) && weight.stride(0) == kWidth &&
         aligned(bias) && dense(state_before) && dense(state_after) &&
         rows_are_multiples_of(bytes, x) && rows_are_multiples_of(bytes, out);
}

}  // namespace

void GpuOps::do_causal_conv1d(const Tensor& out, const Tensor& state_after, const Tensor& x,
                              const Tensor& weight, const Tensor& bias, const Tensor& state_before,
                              std::optional<Activation> function) {
  const bool one_token =
      x.dim(0) * x.dim(1) == 1 && state_before.defined() && state_after.defined();
  if (one_token && channels_are_vectors(out, state_after, x, weight, bias, state_before) &&
      choose("in_product") &&
      held_.convolve(out, state_after, x, weight, bias, state_before, function)) {
    return;
  }
  const bool vectors =
      channels_are_vectors(out, state_after, x, weight, bias, state_before) && choose("vectors");
  if (!vectors) settle_for("channels");
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
    const int64_t channels = x.dim(2) / (vectors ? kChannels : 1);
    p.channels = Divisor(channels);
    p.segments = Divisor(segments);
    p.total = divisible("causal_conv1d", x.dim(0) * channels * segments);
    if (p.total == 0) return;
    const auto launched = [&]<auto Kernel>(int threads) {
      launch_overlapped<Kernel>("causal_conv1d", {grid_for(p.total, threads)},
                                {static_cast<unsigned>(threads)}, 0, stream(), p);
    };
    const auto go = [&]<bool Activated, Activation Function>() {
      if (vectors) {
        launched.template operator()<conv_vectors<T, Activated, Function>>(kVectorThreads);
      } else {
        launched.template operator()<conv_channels<T, Activated, Function>>(kThreads);
      }
    };
    if (!function) return go.template operator()<false, Activation::silu>();
    with_activation(*function, [&]<Activation F>() { go.template operator()<true, F>(); });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
