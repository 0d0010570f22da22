// Ops of the oracle on what float64 is too narrow for (wider.cpp).
#pragma once

#include "kernels/oracle/oracle_ops.h"

namespace plumb::wider {

// Whether a call of this storage dtype is computed here, in this run.
bool has(DType storage);

void map(const MapCall& call);
void reduce(const ReduceCall& call);
void cumsum(const Tensor& out, const Tensor& x, int axis);
void index_add(const IndexAddCall& call);
void top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest);
// Of i64. from: the place in x of each element of out, or -1: `outside`.
void move(const Tensor& out, const std::vector<int64_t>& from, const Tensor& x, double outside);
void copy(const Tensor& out, const Tensor& x);
void gemm(const GemmCall& call);

}  // namespace plumb::wider
