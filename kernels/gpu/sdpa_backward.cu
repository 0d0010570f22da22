// The gradients of attention. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

void GpuOps::do_sdpa_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const AttentionMask&, const SdpaParams&) {
  throw Unsupported("[sdpa_backward] is not implemented on GPUs");
}

}  // namespace plumb::PLUMB_GPU_VENDOR
