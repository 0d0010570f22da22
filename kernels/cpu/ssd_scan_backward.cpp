// The gradients of Mamba2's scan. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_ssd_scan_backward(const SsdInputs&, const Tensor&, const Tensor&, const SsdInputs&,
                                  const SsdParams&) {
  throw Unsupported("[ssd_scan_backward] is not implemented on the cpu device");
}

}  // namespace plumb::cpu
