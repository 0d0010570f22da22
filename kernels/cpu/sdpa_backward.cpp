// The gradients of attention. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_sdpa_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const AttentionMask&, const SdpaParams&) {
  throw Unsupported("[sdpa_backward] is not implemented on the cpu device");
}

}  // namespace plumb::cpu
