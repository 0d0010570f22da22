// MaskView: an AttentionMask in a form that a kernel can take by value.
#pragma once

#include "kernels/gpu/gpu.h"
#include "kernels/ops/ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct MaskView {
  int64_t query_offset = 0, key_offset = 0;
  int64_t window = 0;  // 0: none
  bool causal = false;
  const uint8_t* key_valid = nullptr;  // [B, keys]
  int64_t valid_stride = 0;
  const uint8_t* explicit_bool = nullptr;  // [B|1, H|1, T, keys]
  const void* explicit_additive = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  __host__ __device__ int64_t explicit_at(int64_t b, int64_t h, int64_t t, int64_t key) const {
    return b * batch_stride + h * head_stride + t * row_stride + key;
  }

  // Whether query t of batch b and head h may see a key; additive masks are the caller's.
  __host__ __device__ bool allows(int64_t b, int64_t h, int64_t t, int64_t key) const {
    if (explicit_bool) return explicit_bool[explicit_at(b, h, t, key)] != 0;
    const int64_t query_slot = query_offset + t, key_slot = key_offset + key;
    if (causal && key_slot > query_slot) return false;
    if (window && query_slot - key_slot >= window) return false;
    return !key_valid || key_valid[b * valid_stride + key] != 0;
  }

  // Keys outside [first, last) are masked for every query in [t0, t1]: whole tiles can be skipped.
  __host__ __device__ int64_t first_key(int64_t t0) const {
    if (explicit_bool || explicit_additive || !window) return 0;
    const int64_t first = query_offset + t0 - window + 1 - key_offset;
    return first < 0 ? 0 : first;
  }
  __host__ __device__ int64_t last_key(int64_t t1, int64_t keys) const {
    if (explicit_bool || explicit_additive || !causal) return keys;
    const int64_t last = query_offset + t1 + 1 - key_offset;
    return last < 0 ? 0 : last < keys ? last : keys;
  }
};

inline MaskView mask_view(const AttentionMask& mask) {
  MaskView out;
  out.query_offset = mask.query_offset;
  out.key_offset = mask.key_offset;
  out.window = mask.position ? 0 : mask.window.value_or(0);  // SlotView's
  out.causal = mask.causal;
  if (mask.key_valid.defined()) {
    out.key_valid = mask.key_valid.data<uint8_t>();
    out.valid_stride = mask.key_valid.stride(0);
  }
  if (const Tensor& m = mask.explicit_mask; m.defined()) {
    if (m.dtype() == DType::boolean) {
      out.explicit_bool = m.data<uint8_t>();
    } else {
      out.explicit_additive = m.raw();
    }
    out.batch_stride = m.dim(0) == 1 ? 0 : m.stride(0);
    out.head_stride = m.dim(1) == 1 ? 0 : m.stride(1);
    out.row_stride = m.stride(2);
  }
  return out;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
