// cuBLASLt, opened when first needed: a machine without it still runs every op in our own kernels.
#pragma once

#include <string>

#if defined(PLUMB_CUBLASLT)
#include <cublasLt.h>
#endif

namespace plumb {

// "cuBLASLt 13.1.1", or why products run in our own kernels.
std::string cublaslt_text();

#if defined(PLUMB_CUBLASLT)
// The functions that we call, under their own names without the prefix.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

// Null where the library cannot be used; cublaslt_text() says why.
const CublasLt* cublaslt();
#endif

}  // namespace plumb
