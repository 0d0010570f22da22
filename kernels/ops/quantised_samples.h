// Operands of ops of quantised values: shapes and dtypes that a layout has, and what is in them.
#pragma once

#include <functional>
#include <vector>

#include "kernels/ops/op_id.h"
#include "kernels/ops/op_params.h"

namespace plumb {

struct QuantisedSample {
  std::vector<Tensor> operands;  // in the order of the op's row; on the host
  QuantisedParams weight = {};
  QuantizeParams codes = {};
};

struct SampleSource {
  std::function<int(int)> choose;  // one of n numbers from 0 on
  std::function<double()> normal;
};

inline bool has_layout(OpId op) {
  return op == OpId::dequantize || op == OpId::quantize || op == OpId::quantised_linear;
}
// The number-th of them; extent: that of the result's rows, or -1: any.
QuantisedSample quantised_sample(OpId op, DType storage, int number, int64_t extent,
                                 const SampleSource& source);

}  // namespace plumb
