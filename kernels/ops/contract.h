// Contract: what a kernel promises about its arithmetic. Limits are derived from it, never from a
// device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb {

enum class SumRounding { nearest, toward_zero };

// Where values are rounded to the storage dtype: after every operation as HuggingFace's eager code
// does; once, at the output of a fused op; or as flash attention does, there and in the weights
// that multiply the values (against a running maximum).
enum class RoundingPoints { eager, fused, flash };

struct Accumulator {
  int bits = 24;  // significand bits; u_acc = 2^-bits
  SumRounding rounding = SumRounding::nearest;
  int block = 1;  // products summed before one truncation (toward_zero only)
};

struct Contract {
  DType storage = DType::f32;
  DType multiply = DType::f32;
  Accumulator accumulator;
  RoundingPoints points = RoundingPoints::eager;
  // A row (of the leading axis) has the same bits whatever the other rows are, and however many.
  bool row_bits = false;
};

std::string to_string(const Contract& contract);  // "bf16 multiply bf16 acc 24 nearest eager"

// One sum of n terms on the way to an output element.
struct Stage {
  int64_t terms = 0;
  Accumulator accumulator;
};

}  // namespace plumb
