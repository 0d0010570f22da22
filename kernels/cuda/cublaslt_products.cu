// cuBLASLt is column-major: where we see out [m, n] = x [m, k] w, it sees out^T [n, m] = w^T x^T
// with w as its first operand. The bias is added in float32 before the one rounding.
#include <optional>
#include <sstream>

#include "kernels/core/error.h"
#include "kernels/cuda/cublaslt_products.h"

namespace plumb::cuda {
namespace {

void check_lt(cublasStatus_t status, const char* what) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cublasLt", what,
                       " failed: ", cublaslt()->status_name(status));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f8_e4m3: return CUDA_R_8F_E4M3;
    case DType::f8_e5m2: return CUDA_R_8F_E5M2;
    case DType::i8: return CUDA_R_8I;
    case DType::u8: return CUDA_R_8U;  // of which it has no product today
    case DType::i32: return CUDA_R_32I;
    default: return CUDA_R_32F;
  }
}

// What sums, alpha and beta are.
struct SumType {
  cublasComputeType_t compute;
  cudaDataType_t scale;
};
SumType sum_type(DType out) {
  if (out == DType::f64) return {CUBLAS_COMPUTE_64F, CUDA_R_64F};
  if (out == DType::i32) return {CUBLAS_COMPUTE_32I, CUDA_R_32I};
  return {CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

// A number as cuBLASLt reads it.
union Scale {
  double f64;
  float f32;
  int32_t i32;
};
Scale scale_of(DType out, double x) {
  Scale scale{};
  if (out == DType::f64) scale.f64 = x;
  else if (out == DType::i32) scale.i32 = static_cast<int32_t>(x);
  else scale.f32 = static_cast<float>(x);
  return scale;
}

constexpr int kMostAlgorithms = 16;

// The library's type has no name, which nvcc 13.0 does not get over in containers.
struct Algorithm {
  cublasLtMatmulAlgo_t value{};
};

// An algorithm is opaque, but its bytes may be kept for the same version of the library.
std::string name_of(const Algorithm& algorithm) {
  std::ostringstream out;
  out << cublaslt()->version() << std::hex;
  for (const uint64_t word : algorithm.value.data) out << ':' << word;
  return out.str();
}

std::optional<Algorithm> algorithm_of(const std::string& name) {
  std::istringstream in(name);
  size_t version = 0;
  if (!(in >> version) || version != cublaslt()->version()) return {};
  Algorithm out;
  in >> std::hex;
  for (uint64_t& word : out.value.data) {
    char colon = 0;
    if (!(in >> colon >> word) || colon != ':') return {};
  }
  return out;
}

}  // namespace

struct CublasLtProducts::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  explicit Plan(const BatchedProduct& p) {
    const cudaDataType_t factors = data_type(p.factors), type = data_type(p.dtype);
    const SumType sums = sum_type(p.dtype);
    check_lt(cublaslt()->desc_create(&operation, sums.compute, sums.scale), "descriptor");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.w_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose");
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.x_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose");
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, "epilogue");
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type, "bias type");
    }
    const int64_t w_rows = p.w_transposed ? p.k : p.n, w_columns = p.w_transposed ? p.n : p.k;
    lay_out(w, factors, w_rows, w_columns, p.w_stride, p.batch, p.w_next);
    const int64_t x_rows = p.x_transposed ? p.m : p.k, x_columns = p.x_transposed ? p.k : p.m;
    lay_out(x, factors, x_rows, x_columns, p.x_stride, p.batch, p.x_next);
    lay_out(out, type, p.n, p.m, p.out_stride, p.batch, p.out_next);
    const bool adds = p.c_stride != 0;
    lay_out(c, type, p.n, p.m, adds ? p.c_stride : p.out_stride, p.batch,
            adds ? p.c_next : p.out_next);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (operation) cublaslt()->desc_destroy(operation);
    for (cublasLtMatrixLayout_t layout : {w, x, out, c}) {
      if (layout) cublaslt()->layout_destroy(layout);
    }
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value, const char* what) {
    check_lt(cublaslt()->desc_set(operation, attribute, &value, sizeof value), what);
  }

  static void lay_out(cublasLtMatrixLayout_t& layout, cudaDataType_t type, int64_t rows,
                      int64_t columns, int64_t stride, int64_t batch, int64_t next) {
    check_lt(cublaslt()->layout_create(&layout, type, static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(columns), stride),
             "layout");
    const auto count = static_cast<int32_t>(batch);
    check_lt(
        cublaslt()->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "batch count");
    check_lt(cublaslt()->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &next,
                                    sizeof next),
             "batch stride");
  }

  // At most so many, and kMostAlgorithms.
  std::vector<Algorithm> proposed(cublasLtHandle_t handle, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublaslt()->preference_create(&preference), "preference");
    cublaslt()->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                               sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t results[kMostAlgorithms] = {};
    int count = 0;
    const cublasStatus_t status =
        cublaslt()->heuristic(handle, operation, w, x, out, out, preference, most, results, &count);
    cublaslt()->preference_destroy(preference);
    std::vector<Algorithm> algorithms;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({results[i].algo});
    }
    return algorithms;
  }

  void find_algorithm(cublasLtHandle_t handle) {
    const std::vector<Algorithm> first = proposed(handle, 1);
    found = !first.empty();
    if (found) algorithm = first[0].value;
  }

  // Only if the library says that it can still do this product so.
  void take_algorithm(cublasLtHandle_t handle, const std::string& name) {
    const std::optional<Algorithm> named = algorithm_of(name);
    if (!named) return;
    cublasLtMatmulHeuristicResult_t result{};
    found = cublaslt()->check(handle, operation, w, x, c, out, &named->value, &result) ==
                CUBLAS_STATUS_SUCCESS &&
            result.workspaceSize <= kWorkspace;
    algorithm = named->value;
  }
};

CublasLtProducts::CublasLtProducts() { check_lt(cublaslt()->create(&handle_), "cublasLtCreate"); }
CublasLtProducts::~CublasLtProducts() { cublaslt()->destroy(handle_); }

CublasLtProducts::Plan& CublasLtProducts::plan(const BatchedProduct& product) {
  std::unique_ptr<Plan>& slot = plans_[product];
  if (!slot) {
    slot = std::make_unique<Plan>(product);
    if (product.algorithm.empty()) slot->find_algorithm(handle_);
    else slot->take_algorithm(handle_, product.algorithm);
  }
  return *slot;
}

std::vector<std::string> CublasLtProducts::algorithms(const BatchedProduct& product) {
  std::vector<std::string> out;
  for (const Algorithm& one : Plan(product).proposed(handle_, kMostAlgorithms)) {
    out.push_back(name_of(one));
  }
  return out;
}

bool CublasLtProducts::can(const BatchedProduct& product) { return plan(product).found; }

void CublasLtProducts::run(const BatchedProduct& product, const ProductPointers& at,
                           void* workspace, Stream stream) {
  Plan& p = plan(product);
  if (product.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias, "bias");
  const Scale alpha = scale_of(product.dtype, at.alpha), beta = scale_of(product.dtype, at.beta);
  check_lt(cublaslt()->matmul(handle_, p.operation, &alpha, at.w, p.w, at.x, p.x, &beta,
                              at.c ? at.c : at.out, p.c, at.out, p.out, &p.algorithm, workspace,
                              kWorkspace, stream),
           "cublasLtMatmul");
}

}  // namespace plumb::cuda
