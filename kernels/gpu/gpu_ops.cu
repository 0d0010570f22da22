#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

Contract GpuOps::contract(OpId op, DType storage) const {
  Contract out{storage, storage, {24, SumRounding::nearest, 1}, RoundingPoints::eager};
  if (op == OpId::linear) out.accumulator = linear_accumulator(storage);
  if (op == OpId::sdpa) out.points = RoundingPoints::fused;
  return out;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
