// No vendor library here: every op runs in the shared kernels.
#include "kernels/gpu/float64_products.h"
#include "kernels/gpu/gpu_ops.h"

namespace plumb::PLUMB_GPU_VENDOR {

struct GpuOps::Library {};

bool GpuOps::library_linear(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const std::string&) {
  return false;
}

std::vector<std::string> GpuOps::library_algorithms(const LinearShape&) { return {}; }

bool GpuOps::library_gemm(const GemmCall&) { return false; }

bool GpuOps::library_sdpa(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const AttentionMask&, const SdpaParams&) {
  return false;
}

std::unique_ptr<Float64Library> open_float64_library() { return nullptr; }

std::vector<Implementation> GpuOps::library_implementations() { return {}; }

Accumulator GpuOps::product_accumulator(DType) const { return {24, SumRounding::nearest, 1}; }

}  // namespace plumb::PLUMB_GPU_VENDOR
