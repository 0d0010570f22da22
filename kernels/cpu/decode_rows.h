// Rows of quantised weights as float32.
#pragma once

#include "kernels/ops/decode.h"

namespace plumb::cpu {

// Weights [n, first ...) of a row, each rounded once to float32.
void decode_row(const PackedWeight& weight, int64_t n, int64_t first, int64_t count, float* to);
// So that a rounding of them to 16 bits is the only one (decode::odd_float).
void decode_row_oddly(const PackedWeight& weight, int64_t n, int64_t first, int64_t count,
                      float* to);

}  // namespace plumb::cpu
