// Calls of quantised weights and of what makes codes, as devices take them.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

// [rows, columns]; a scale belongs to group_rows x group_columns of it. What is not there is
// undefined.
struct QuantisedWeight {
  const LayoutRow& layout;
  Tensor codes, scales, zeros, global_scale, group_index;
  int64_t rows, columns;
  int64_t group_rows, group_columns;

  // Along the columns.
  int64_t groups() const { return (columns + group_columns - 1) / group_columns; }
};

struct QuantizeCall {
  const OpRow& row;
  Tensor codes, scales, zeros, x;  // zeros undefined: none
  ScaleRule rule;
  float divisor;
  int64_t group_rows, group_columns;
};

struct QuantisedLinearCall {
  const OpRow& row;
  Tensor out, x;  // [*, N], [*, K]
  QuantisedWeight weight;
  Tensor x_scales;  // [*, 1], or undefined: x is of floats
  Tensor bias;      // [N], or undefined

  bool of_whole_numbers() const { return x_scales.defined() && x.dtype() == DType::i8; }
};

}  // namespace plumb
