// The oracle's large products on the GPU that is judged: by a kernel of ours, with the bits of the
// CPU, or by the vendor's library. Operands go there in panels, as narrow as they are.
#pragma once

#include <memory>
#include <string>

#include "kernels/gpu/gpu.h"
#include "kernels/oracle/float64_products.h"

namespace plumb::PLUMB_GPU_VENDOR {

// out [m, n] = a [m, k] b, all float64 in device memory and without gaps.
struct WideProduct {
  int64_t m = 0, n = 0, k = 0;
  bool transposed = false;  // b is stored as [n, k], else as [k, n]
  const double *a = nullptr, *b = nullptr;
  double* out = nullptr;
};

// The vendor's library, for one thread at a time.
class Float64Library {
 public:
  virtual ~Float64Library() = default;
  // workspace: workspace_bytes() in device memory.
  virtual void run(const WideProduct& product, void* workspace, Stream stream) = 0;
  virtual size_t workspace_bytes() const = 0;
};

// Defined per vendor; null where there is none.
std::unique_ptr<Float64Library> open_float64_library();

// As PLUMB_ORACLE says; by default none on an emulated GPU, which is slower than the CPU.
std::shared_ptr<Float64Products> open_float64_products(const std::string& device, int ordinal);

}  // namespace plumb::PLUMB_GPU_VENDOR
