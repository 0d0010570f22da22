// The gradients of Mamba2's scan. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_ssd_scan_backward(const SsdInputs&, const Tensor&, const Tensor&,
                                     const SsdInputs&, const SsdParams&) {
  throw Unsupported("[ssd_scan_backward] is not implemented on the oracle");
}

}  // namespace plumb
