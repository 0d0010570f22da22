// Intel's oneDNN as a matrix product on one thread: onednn.cpp where the library was found at
// configure time, no_onednn.cpp otherwise. Threads are ours, so that no result depends on their
// number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/dtype.h"

namespace plumb::cpu::onednn {

// Whether the library is there and may be used with this instruction set (oneDNN chooses its code
// at run time; wider instructions than these are disabled for the whole process).
bool prepare(std::string_view instruction_set);
std::string version();  // "2.6.3"

// Whether this machine multiplies this dtype faster than its float32 copy.
bool multiplies(DType dtype);

bool has_matrix_unit();  // that oneDNN uses for bf16: Intel's AMX

// c[i, j] = sum over p of a[i, p] b[j, p] in float32: a [m, k], b [n, k] of `dtype`, c [m, n]; rows
// of stride lda, ldb, ldc elements.
void gemm(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b,
          int64_t ldb, float* c, int64_t ldc);

}  // namespace plumb::cpu::onednn
