// Quantised values. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {

void OracleOps::do_dequantize(const Tensor&, const QuantisedWeight&) {
  throw Unsupported("[dequantize] is not implemented");
}

void OracleOps::do_quantize(const QuantizeCall&) {
  throw Unsupported("[quantize] is not implemented");
}

void OracleOps::do_quantised_linear(const QuantisedLinearCall&) {
  throw Unsupported("[quantised_linear] is not implemented");
}

}  // namespace plumb
