#include "kernels/core/error.h"
#include "kernels/cpu/onednn.h"

namespace plumb::cpu::onednn {

bool prepare(std::string_view) { return false; }
std::string version() { return ""; }
bool multiplies(DType) { return false; }
bool has_matrix_unit() { return false; }
void gemm(DType, int64_t, int64_t, int64_t, const void*, int64_t, const void*, int64_t, float*,
          int64_t) {
  throw Unsupported("[linear] this binary was built without oneDNN");
}

}  // namespace plumb::cpu::onednn
