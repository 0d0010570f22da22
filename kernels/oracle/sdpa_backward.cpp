// The gradients of attention. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_sdpa_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const AttentionMask&, const SdpaParams&) {
  throw Unsupported("[sdpa_backward] is not implemented on the oracle");
}

}  // namespace plumb
