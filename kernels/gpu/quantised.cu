// Quantised values. Formulas and roundings: ops.h.
#include "kernels/core/error.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

void GpuOps::do_dequantize(const Tensor&, const QuantisedWeight&) {
  throw Unsupported("[dequantize] is not implemented");
}

void GpuOps::do_quantize(const QuantizeCall&) {
  throw Unsupported("[quantize] is not implemented");
}

void GpuOps::do_quantised_linear(const QuantisedLinearCall&) {
  throw Unsupported("[quantised_linear] is not implemented");
}

}  // namespace plumb::PLUMB_GPU_VENDOR
