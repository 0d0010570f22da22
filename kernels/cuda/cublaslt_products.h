// Matrix products as cuBLASLt takes them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "kernels/gpu/gpu.h"

namespace plumb::cuda {

// out [m, n] = alpha x [m, k] w (+ beta c [m, n]) (+ bias [n]), for each of `batch`: row-major.
// Strides are in elements: from row to row, and from one product of the batch to the next.
struct BatchedProduct {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool w_transposed = true;   // w is stored as [n, k], else as [k, n]
  bool x_transposed = false;  // x is stored as [k, m], else as [m, k]
  int64_t x_stride = 0, w_stride = 0, out_stride = 0, c_stride = 0;
  int64_t x_next = 0, w_next = 0, out_next = 0, c_next = 0;
  bool bias = false;
  DType factors = DType::f32;  // of x and w
  DType dtype = DType::f32;    // of out, c and bias: f32 of 8-bit floats, i32 of i8
  std::string algorithm = {};  // one of algorithms(); empty: the library's first choice

  auto operator<=>(const BatchedProduct&) const = default;
};

struct ProductPointers {
  const void *x, *w, *bias;
  void* out;
  double alpha = 1, beta = 0;
  const void* c = nullptr;  // read where beta is not 0
};

// The handle of one device, and a plan (descriptors and algorithm) per product that it met.
class CublasLtProducts {
 public:
  static constexpr size_t kWorkspace = size_t{32} << 20;

  CublasLtProducts();  // needs cublaslt(); throws DeviceError
  ~CublasLtProducts();
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  // What the library's heuristics propose, the best first, as text that names its version.
  std::vector<std::string> algorithms(const BatchedProduct& product);
  // Whether cuBLASLt has an algorithm for it, or knows the one that is asked for.
  bool can(const BatchedProduct& product);
  // Of one for which can(). workspace: kWorkspace bytes.
  void run(const BatchedProduct& product, const ProductPointers& at, void* workspace,
           Stream stream);

 private:
  struct Plan;
  Plan& plan(const BatchedProduct& product);

  cublasLtHandle_t handle_ = nullptr;
  std::map<BatchedProduct, std::unique_ptr<Plan>> plans_;
};

}  // namespace plumb::cuda
