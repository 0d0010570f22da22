#include "kernels/cuda/cublaslt.h"

#include "kernels/core/error.h"

#if defined(PLUMB_CUBLASLT)
#include <dlfcn.h>

namespace plumb {
namespace {

struct Opened {
  CublasLt functions{};
  std::string problem;  // "" when usable
};

// From where the loader looks, else from the toolkit whose header this was built with.
void* open_library() {
  const std::string name = text("libcublasLt.so.", CUBLAS_VER_MAJOR);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string in_toolkit = text(PLUMB_CUBLASLT_LIBRARY_DIR, '/', name);
  return dlopen(in_toolkit.c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <class F>
void find(void* library, const char* symbol, F& function, std::string& problem) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  if (!function && problem.empty()) problem = text("libcublasLt lacks ", symbol);
}

Opened open() {
  Opened out;
  void* library = open_library();
  if (!library) {
    out.problem = text("libcublasLt.so.", CUBLAS_VER_MAJOR,
                       " not found; install nvidia-cublas, or name its folder in LD_LIBRARY_PATH");
    return out;
  }
  CublasLt& f = out.functions;
  find(library, "cublasLtCreate", f.create, out.problem);
  find(library, "cublasLtDestroy", f.destroy, out.problem);
  find(library, "cublasLtGetVersion", f.version, out.problem);
  find(library, "cublasLtGetStatusName", f.status_name, out.problem);
  find(library, "cublasLtMatmul", f.matmul, out.problem);
  find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic, out.problem);
  find(library, "cublasLtMatmulAlgoCheck", f.check, out.problem);
  find(library, "cublasLtMatmulDescCreate", f.desc_create, out.problem);
  find(library, "cublasLtMatmulDescDestroy", f.desc_destroy, out.problem);
  find(library, "cublasLtMatmulDescSetAttribute", f.desc_set, out.problem);
  find(library, "cublasLtMatrixLayoutCreate", f.layout_create, out.problem);
  find(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy, out.problem);
  find(library, "cublasLtMatrixLayoutSetAttribute", f.layout_set, out.problem);
  find(library, "cublasLtMatmulPreferenceCreate", f.preference_create, out.problem);
  find(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy, out.problem);
  find(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set, out.problem);
  return out;
}

const Opened& opened() {
  static const Opened library = open();
  return library;
}

}  // namespace

const CublasLt* cublaslt() { return opened().problem.empty() ? &opened().functions : nullptr; }

std::string cublaslt_text() {
  if (!cublaslt()) return "no cuBLASLt: " + opened().problem;
  const size_t v = cublaslt()->version();
  return text("cuBLASLt ", v / 10000, '.', v / 100 % 100, '.', v % 100);
}

}  // namespace plumb

#else

namespace plumb {

std::string cublaslt_text() { return "built without cuBLASLt"; }

}  // namespace plumb

#endif
