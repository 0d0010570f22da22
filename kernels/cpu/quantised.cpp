// Quantised values. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_dequantize(const Tensor&, const QuantisedWeight&) {
  throw Unsupported("[dequantize] is not implemented");
}

void CpuOps::do_quantize(const QuantizeCall&) {
  throw Unsupported("[quantize] is not implemented");
}

void CpuOps::do_quantised_linear(const QuantisedLinearCall&) {
  throw Unsupported("[quantised_linear] is not implemented");
}

}  // namespace plumb::cpu
