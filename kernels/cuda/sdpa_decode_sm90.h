// Attention of one query token over many keys on Hopper GPUs (compute capability 9.0): tensor
// cores, fed by the copy engine.
#pragma once

#include "kernels/gpu/gpu_ops.h"

namespace plumb::cuda::sm90 {

// True when it did the work. Cases: bf16; head_dim 128 or 256, v_head_dim too; one query token; up
// to eight query heads for each key-value head; at least one key; masks of offsets, a window or a
// position in the device's memory; k and v that the copy engine takes (tensor_map.h), and 64 MiB of
// them, unless --impl leaves nothing else.
bool decode_sdpa(GpuOps& ops, const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionMask& mask, const SdpaParams& params);

// What the kernel promises: its products are the tensor cores', which truncate after blocks of 16.
// Weights keep 16 bits at least: one rounding, at the output.
inline Contract decode_contract() {
  return {DType::bf16, DType::bf16, {24, SumRounding::toward_zero, 16}, RoundingPoints::fused};
}

}  // namespace plumb::cuda::sm90
