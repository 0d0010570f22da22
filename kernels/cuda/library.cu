// What cuBLASLt does better than kernels/gpu: matrix products on tensor cores.
//
// linear is row-major out [M, N] = x [M, K] w [N, K]^T. Column-major cuBLASLt sees out^T [N, M] =
// w^T^T x^T: A = w as [K, N] transposed, B = x as [K, M]. The bias is added in float32 before the
// one rounding.
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/rows.h"

#if defined(PLUMB_CUBLASLT)
#include <map>
#include <tuple>
#endif

namespace plumb::cuda {

#if defined(PLUMB_CUBLASLT)
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

void check_lt(cublasStatus_t status, const char* what) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cublasLt", what,
                       " failed: ", cublaslt()->status_name(status));
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

struct Shape3 {
  int64_t m, n, k, x_stride;
  DType dtype;
  bool bias;
  auto key() const { return std::make_tuple(m, n, k, x_stride, dtype, bias); }
};

// Descriptors and the algorithm for one shape.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  ~Plan() {
    if (operation) cublaslt()->desc_destroy(operation);
    for (cublasLtMatrixLayout_t layout : {weight, x, out}) {
      if (layout) cublaslt()->layout_destroy(layout);
    }
  }
};

}  // namespace

struct GpuOps::Library {
  cublasLtHandle_t handle = nullptr;
  std::map<decltype(Shape3{}.key()), std::unique_ptr<Plan>> plans;

  Library() { check_lt(cublaslt()->create(&handle), "cublasLtCreate"); }
  ~Library() { cublaslt()->destroy(handle); }

  Plan& plan(const Shape3& s) {
    std::unique_ptr<Plan>& slot = plans[s.key()];
    if (!slot) slot = make_plan(s);
    return *slot;
  }

  std::unique_ptr<Plan> make_plan(const Shape3& s) {
    auto p = std::make_unique<Plan>();
    const cudaDataType_t type = data_type(s.dtype);
    check_lt(cublaslt()->desc_create(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(cublaslt()->desc_set(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                  sizeof transposed),
             "transpose");
    if (s.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      check_lt(cublaslt()->desc_set(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                    sizeof epilogue),
               "epilogue");
      check_lt(cublaslt()->desc_set(p->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                    sizeof type),
               "bias type");
    }
    const auto rows = [](int64_t v) { return static_cast<uint64_t>(v); };
    check_lt(cublaslt()->layout_create(&p->weight, type, rows(s.k), rows(s.n), s.k), "layout");
    check_lt(cublaslt()->layout_create(&p->x, type, rows(s.k), rows(s.m), s.x_stride), "layout");
    check_lt(cublaslt()->layout_create(&p->out, type, rows(s.n), rows(s.m), s.n), "layout");
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublaslt()->preference_create(&preference), "preference");
    cublaslt()->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                               sizeof kWorkspace);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = cublaslt()->heuristic(
        handle, p->operation, p->weight, p->x, p->out, p->out, preference, 1, &result, &count);
    cublaslt()->preference_destroy(preference);
    p->found = status == CUBLAS_STATUS_SUCCESS && count > 0;
    p->algorithm = result.algo;
    return p;
  }
};

bool GpuOps::library_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const Tensor& bias) {
  const Rows rows = rows_of("linear", x);
  // cuBLASLt promises its algorithms for 16-byte aligned operands; the rest takes the shared
  // kernels.
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
  };
  if (!rows.evenly_spaced() || !out.contiguous() || !weight.contiguous() || !rows_are_vectors(x) ||
      !rows_are_vectors(out) || !rows_are_vectors(weight) || (bias.defined() && !aligned(bias))) {
    return false;
  }
  if (!cublaslt()) return false;
  if (!library_) library_ = std::make_shared<Library>();
  const int64_t stride = rows.count > 1 ? rows.stride2 : x.dim(-1);
  Plan& plan = library_->plan(
      {rows.count, weight.dim(0), weight.dim(1), stride, out.dtype(), bias.defined()});
  if (!plan.found || !choose("cublaslt")) return false;
  if (bias.defined()) {
    const void* pointer = bias.raw();
    check_lt(cublaslt()->desc_set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer,
                                  sizeof pointer),
             "bias");
  }
  Arena::Scope scope(arena());
  const Tensor workspace = arena().take(DType::u8, Shape({static_cast<int64_t>(kWorkspace)}));
  const float one = 1, zero = 0;
  check_lt(cublaslt()->matmul(library_->handle, plan.operation, &one, weight.raw(), plan.weight,
                              x.raw(), plan.x, &zero, out.raw(), plan.out, out.raw(), plan.out,
                              &plan.algorithm, workspace.raw(), kWorkspace, stream()),
           "cublasLtMatmul");
  return true;
}

// Tensor cores truncate: blocks of 16 products, as measured on an H200 (verdicts: conformance).
Accumulator GpuOps::linear_accumulator(DType storage) const {
  if (storage == DType::f32 || !cublaslt()) return {24, SumRounding::nearest, 1};
  return {24, SumRounding::toward_zero, 16};
}

#else

struct GpuOps::Library {};

bool GpuOps::library_linear(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}

Accumulator GpuOps::linear_accumulator(DType) const { return {24, SumRounding::nearest, 1}; }

#endif

std::vector<Implementation> GpuOps::library_implementations() {
  std::vector<Implementation> out = sdpa_implementations();
#if defined(PLUMB_CUBLASLT)
  const std::string_view absent = cublaslt() ? "" : "libcublasLt is not on this machine";
  out.push_back({OpId::linear, {"cublaslt", {}}, absent});
#endif
  return out;
}

}  // namespace plumb::cuda
