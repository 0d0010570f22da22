// cuBLASLt is column-major: where we see out [m, n] = x [m, k] w, it sees out^T [n, m] = w^T x^T
// with w as its first operand. The bias is added in float32 before the one rounding.
#include "kernels/core/error.h"
#include "kernels/cuda/cublaslt_products.h"

namespace plumb::cuda {
namespace {

void check_lt(cublasStatus_t status, const char* what) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cublasLt", what,
                       " failed: ", cublaslt()->status_name(status));
}

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::f64) return CUDA_R_64F;
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

}  // namespace

struct CublasLtProducts::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  explicit Plan(const BatchedProduct& p) {
    const cudaDataType_t type = data_type(p.dtype);
    const bool wide = p.dtype == DType::f64;
    check_lt(cublaslt()->desc_create(&operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                     wide ? CUDA_R_64F : CUDA_R_32F),
             "descriptor");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.w_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, "transpose");
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, "epilogue");
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type, "bias type");
    }
    const int64_t w_rows = p.w_transposed ? p.k : p.n, w_columns = p.w_transposed ? p.n : p.k;
    lay_out(w, type, w_rows, w_columns, p.w_stride, p.batch, p.w_next);
    lay_out(x, type, p.k, p.m, p.x_stride, p.batch, p.x_next);
    lay_out(out, type, p.n, p.m, p.out_stride, p.batch, p.out_next);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (operation) cublaslt()->desc_destroy(operation);
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
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

  void find_algorithm(cublasLtHandle_t handle) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublaslt()->preference_create(&preference), "preference");
    cublaslt()->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                               sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        cublaslt()->heuristic(handle, operation, w, x, out, out, preference, 1, &result, &count);
    cublaslt()->preference_destroy(preference);
    found = status == CUBLAS_STATUS_SUCCESS && count > 0;
    algorithm = result.algo;
  }
};

CublasLtProducts::CublasLtProducts() { check_lt(cublaslt()->create(&handle_), "cublasLtCreate"); }
CublasLtProducts::~CublasLtProducts() { cublaslt()->destroy(handle_); }

CublasLtProducts::Plan& CublasLtProducts::plan(const BatchedProduct& product) {
  std::unique_ptr<Plan>& slot = plans_[product];
  if (!slot) {
    slot = std::make_unique<Plan>(product);
    slot->find_algorithm(handle_);
  }
  return *slot;
}

bool CublasLtProducts::can(const BatchedProduct& product) { return plan(product).found; }

void CublasLtProducts::run(const BatchedProduct& product, const ProductPointers& at,
                           void* workspace, Stream stream) {
  Plan& p = plan(product);
  if (product.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias, "bias");
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const bool wide = product.dtype == DType::f64;
  const void* times = wide ? static_cast<const void*>(&wide_one) : &one;
  const void* plus = wide ? static_cast<const void*>(&wide_zero) : &zero;
  check_lt(cublaslt()->matmul(handle_, p.operation, times, at.w, p.w, at.x, p.x, plus, at.out,
                              p.out, at.out, p.out, &p.algorithm, workspace, kWorkspace, stream),
           "cublasLtMatmul");
}

}  // namespace plumb::cuda
