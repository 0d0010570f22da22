// One call of a product of matrices: matmul and gemm.
#pragma once

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

struct GemmCall {
  const OpRow& row;
  Tensor out, a;  // [B, H, M, N], [B, H, M, K] or [B, H, K, M]
  Tensor b;       // [B, G, K, N] or [B, G, N, K]; head h uses h / (H / G)
  Tensor c;       // as out, or undefined: nothing is added
  Tensor bias;    // [N], or undefined
  GemmParams params;

  int64_t rows() const { return out.dim(2); }
  int64_t columns() const { return out.dim(3); }
  int64_t inner() const { return a.dim(params.transpose_a ? 2 : 3); }
  int64_t group() const { return a.dim(1) / b.dim(1); }
  // Whether nothing is done to a sum but its rounding.
  bool is_plain() const {
    return params.alpha == 1 && !c.defined() && !bias.defined() && !params.function;
  }
};

const Signature& gemm_signature(const GemmParams& params);

}  // namespace plumb
