// SlotView: the slots that one query sees (AttentionMask::position), as a kernel finds them.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops/ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct VisibleSlots {
  int first, last;  // [first, last)
};

struct SlotView {
  const int64_t* past = nullptr;  // null: the host has said which keys there are
  int window = 0;                 // 0: none
  int slots = 0;

  bool defined() const { return past != nullptr; }
  // The most that it can be.
  int64_t most_visible() const { return window > 0 ? window : slots; }

  __device__ VisibleSlots visible() const {
    const unsigned before = static_cast<unsigned>(*past), all = static_cast<unsigned>(slots);
    const unsigned w = static_cast<unsigned>(window);
    const bool wrapped = w > 0 && before >= w;
    const unsigned first = wrapped ? (before + 1) % w : 0, last = wrapped ? first + w : before + 1;
    return {static_cast<int>(first), static_cast<int>(last < all ? last : all)};
  }
};

inline SlotView slot_view(const AttentionMask& mask, int64_t slots) {
  if (!mask.position) return {};
  return {mask.position->stored.data<int64_t>(), static_cast<int>(mask.window.value_or(0)),
          static_cast<int>(slots)};
}

}  // namespace plumb::PLUMB_GPU_VENDOR
