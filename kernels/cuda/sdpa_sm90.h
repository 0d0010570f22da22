// Attention over many query tokens on Hopper GPUs (compute capability 9.0): tensor cores, in flash
// attention's order.
#pragma once

#include <cuda.h>

#include <optional>
#include <string_view>

#include "kernels/cuda/sdpa_sm90_schedule.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::cuda::sm90 {

struct SdpaMaps {
  CUtensorMap q, k, v, out;
};

// One call of Ops::sdpa that the kernel can take.
struct SdpaPlan {
  DType dtype;
  int64_t head_dim;
  bool capped;
  SdpaProblem problem;
  SdpaMaps maps;

  std::string_view variant() const;  // "d64", "d128", "d256"
};

// Whether the current device is one.
bool is_hopper();

// Nothing when it is not a case for this kernel on the current device. Cases: bf16 and f16;
// head_dim 64, 128 or 256, v_head_dim too; from 17 query tokens on; masks of offsets alone
// (causal or not, with or without window) under which every query token sees a key; scale > 0;
// softcap in bf16 up to 60; tensors that the copy engine takes (tensor_map.h).
std::optional<SdpaPlan> plan_sdpa(const Tensor& out, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionMask& mask,
                                  const SdpaParams& params);

// Queues it. Blocks: one for each multiprocessor at most.
void run_sdpa(const SdpaPlan& plan, Stream stream, int multiprocessors);

// What the kernel promises: its products are the tensor cores', which truncate after blocks of 16.
inline Contract sdpa_contract(DType storage) {
  return {storage, storage, {24, SumRounding::toward_zero, 16}, RoundingPoints::flash};
}

}  // namespace plumb::cuda::sm90
