// How the host describes attention of a few query tokens to the kernels that split its keys: this
// folder's, and a vendor's own.
#pragma once

#include <algorithm>
#include <numbers>

#include "kernels/core/arena.h"
#include "kernels/gpu/gpu.h"
#include "kernels/gpu/sdpa_decode_rows.h"

namespace plumb::PLUMB_GPU_VENDOR::decode {

// Slots, and their differences, stay within int.
inline constexpr int64_t kMostSlots = int64_t{1} << 28;

inline bool slots_fit(const AttentionMask& mask, int64_t keys) {
  const auto near = [](int64_t slot) { return slot > -kMostSlots && slot < kMostSlots; };
  return near(mask.query_offset) && near(mask.key_offset) && near(keys);
}

template <class T>
DecodeOperands<T> operands(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionMask& mask, const SdpaParams& params) {
  DecodeOperands<T> p{};
  p.out = out.data<T>();
  p.q = q.data<T>();
  p.k = k.data<T>();
  p.v = v.data<T>();
  for (int axis = 0; axis < 3; ++axis) {
    p.q_stride[axis] = q.stride(axis);
    p.k_stride[axis] = k.stride(axis);
    p.v_stride[axis] = v.stride(axis);
    p.out_stride[axis] = out.stride(axis);
  }
  p.kv_heads = k.dim(1);
  p.group = q.dim(1) / k.dim(1);
  p.rows = p.group * q.dim(2);
  p.keys = k.dim(2);
  p.head_dim = q.dim(3);
  const double cap = params.softcap.value_or(0);
  p.scale = static_cast<float>(params.scale * (cap > 0 ? 1 / cap : std::numbers::log2e));
  p.cap = static_cast<float>(cap * std::numbers::log2e);
  p.slots = slot_view(mask, k.dim(2));
  p.mask = mask_view(mask);
  p.one_token = q.dim(2) == 1;
  p.split_unit = 1;
  p.uniform = mask.fully_masked == FullyMasked::uniform;
  p.window = static_cast<int>(std::min(p.mask.window, 4 * kMostSlots));
  const int64_t first = std::min(p.mask.first_key(0), p.keys);
  p.keys_as_split.first = static_cast<int>(first);
  p.keys_as_split.last = static_cast<int>(std::max(p.mask.last_key(q.dim(2) - 1, p.keys), first));
  return p;
}

// Splits so that all of the device's places for blocks are taken.
template <class T>
void split(DecodeOperands<T>& p, int64_t blocks, int64_t places) {
  const int64_t most = std::clamp<int64_t>(places / blocks, 1, kMostSplits);
  if (p.slots.defined()) {
    const int64_t pieces = (p.slots.most_visible() + kFewestKeys - 1) / kFewestKeys;
    p.splits = static_cast<int>(std::min(most, pieces));
  } else {
    p.keys_as_split = split_keys(p.keys_as_split.first, p.keys_as_split.last,
                                 static_cast<int>(most), p.split_unit);
    p.splits = p.keys_as_split.splits;
  }
}

// Scratch for what the splits give; slices: batch rows times key-value heads.
template <class T>
void take_partials(DecodeOperands<T>& p, int64_t slices, Arena& arena) {
  const int64_t states = slices * p.splits * p.rows;
  p.partial = arena.take(DType::f32, Shape({states, p.head_dim})).template data<float>();
  p.state = arena.take(DType::f32, Shape({states, int64_t{2}})).template data<float>();
}

// Queues a kernel that adds the splits up and writes the output. BFloat16 and Float16.
template <class T>
void combine_apart(const DecodeOperands<T>& p, int64_t slices, Stream stream);

}  // namespace plumb::PLUMB_GPU_VENDOR::decode
