// What one_row does to a product's row on its way to memory: the ops that follow it, with their
// roundings, in the threads that hold the sums.
#pragma once

#include "kernels/gpu/functions.h"
#include "kernels/gpu/held_back.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {

inline constexpr int kTaps = 4;

// The two columns of a group have the distance `apart`: one, or that of the pairs of their op.
template <class T>
struct TailOperands {
  RowTail::Kind kind;
  Activation function;
  bool activated;
  T* sum;         // and the row's addend; null: none
  T* out;         // gate: of both columns
  const T* taps;  // convolve: kTaps of each channel, as of the state
  const T* bias;
  const T* state_before;
  T* state;
  int first_channel, channels;
  const T* cos;
  const T* sin;
  T* slots;  // null: none
  int64_t head_stride, slot_stride, capacity;
  const int64_t* past;
  unsigned window;  // 0: none
  Divisor head_dim;
};

template <class T>
TailOperands<T> tail_operands(const RowTail& tail) {
  TailOperands<T> p{};
  p.kind = tail.kind;
  p.activated = tail.function.has_value();
  p.function = tail.function.value_or(Activation::silu);
  if (tail.addend_and_sum.defined()) p.sum = tail.addend_and_sum.data<T>();
  if (tail.out.defined()) p.out = tail.out.data<T>();
  if (tail.taps.defined()) {
    p.taps = tail.taps.data<T>();
    p.bias = tail.bias.defined() ? tail.bias.data<T>() : nullptr;
    p.state_before = tail.state_before.data<T>();
    p.state = tail.state.data<T>();
    p.first_channel = static_cast<int>(tail.first_channel);
    p.channels = static_cast<int>(tail.out.numel());
  }
  if (tail.cos.defined()) {
    p.cos = tail.cos.data<T>();
    p.sin = tail.sin.data<T>();
  }
  p.head_dim = Divisor(tail.head_dim);
  if (!tail.slots.defined()) return p;
  p.slots = tail.slots.data<T>();
  p.head_stride = tail.slots.stride(1);
  p.slot_stride = tail.slots.stride(2);
  p.capacity = tail.slots.dim(2);
  p.past = tail.past.data<int64_t>();
  p.window = static_cast<unsigned>(tail.window);
  return p;
}

template <class T>
__device__ inline float activated(Activation function, float x) {
  switch (function) {
    case Activation::silu: return activate<T, Activation::silu>(x);
    case Activation::gelu: return activate<T, Activation::gelu>(x);
    case Activation::gelu_tanh: return activate<T, Activation::gelu_tanh>(x);
    default: return activate<T, Activation::tanh>(x);
  }
}

// A column's value in its slots: one, with a window both of the ring's.
template <class T>
__device__ inline void store_to_slots(const TailOperands<T>& p, const Division& place, T value) {
  T* to = p.slots + place.quotient * p.head_stride + place.remainder;
  const int64_t past = *p.past;
  const int64_t slot = p.window == 0 ? past : static_cast<uint32_t>(past) % p.window;
  if (slot < p.capacity) to[slot * p.slot_stride] = value;
  if (p.window > 0 && p.window + slot < p.capacity) to[(p.window + slot) * p.slot_stride] = value;
}

// What finish() will read of memory that was not used since the last token.
template <class T>
__device__ inline void prefetch_tail(const TailOperands<T>& p, int column) {
  const int channel = column - p.first_channel;
  if (p.kind != RowTail::Kind::convolve || channel < 0 || channel >= p.channels) return;
  prefetch(p.taps + channel * kTaps);
  prefetch(p.state_before + channel * kTaps);
  if (p.bias) prefetch(p.bias + channel);
}

// One more column of a channel's convolution, which its state remembers.
template <class T>
__device__ inline void convolve(const TailOperands<T>& p, int channel, T fresh) {
  if (channel < 0 || channel >= p.channels) return;
  const auto taps = load_vector<kTaps>(p.taps + channel * kTaps);
  const auto before = load_vector<kTaps>(p.state_before + channel * kTaps);
  const Vector<T, kTaps> columns{{before[1], before[2], before[3], fresh}};
  float y = p.bias ? to_float(p.bias[channel]) : 0.0f;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    y = fused_multiply_add(to_float(taps[k]), to_float(columns[k]), y);
  }
  if (p.activated) y = activated<T>(p.function, rounded<T>(y));
  p.out[channel] = from_float<T>(y);
  store_vector(p.state + channel * kTaps, columns);
}

// The row's element with what is added to it.
template <class T>
__device__ inline T with_addend(const TailOperands<T>& p, T* row, int column, T own) {
  row[column] = own;
  return from_float<T>(to_float(own) + to_float(p.sum[column]));
}

// `own`, the row's element at `column`, the one of its pair that is the `second` or not; `other`
// is the other one.
template <class T>
__device__ inline void finish(const TailOperands<T>& p, T* row, int column, bool second, T own,
                              T other) {
  if (p.kind == RowTail::Kind::gate) {
    row[column] = own;
    if (second) return;
    const float gate = rounded<T>(activated<T>(p.function, to_float(own)));
    p.out[column] = from_float<T>(gate * to_float(other));
    return;
  }
  if (p.kind == RowTail::Kind::convolve) convolve(p, column - p.first_channel, own);
  const Division place = divide(column, p.head_dim);
  if (p.kind == RowTail::Kind::rotate) {
    const float c = to_float(p.cos[place.remainder]), s = to_float(p.sin[place.remainder]);
    const float straight = rounded<T>(to_float(own) * c), crossed = rounded<T>(to_float(other) * s);
    own = from_float<T>(second ? straight + crossed : straight - crossed);
  }
  row[column] = own;
  if (p.slots) store_to_slots(p, place, own);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
