// Ops on dtypes that the vectorised kernels lack: plain loops that read the same formulas and
// reductions (plain_loops.cpp).
#pragma once

#include "kernels/core/thread_pool.h"
#include "kernels/ops/gemm_call.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/move_call.h"
#include "kernels/ops/reduce_call.h"

namespace plumb::cpu::plain {

// f64 in doubles, whole numbers and bools as such.
inline bool has(DType dtype) { return dtype == DType::f64 || is_whole(dtype); }

void map(ThreadPool& pool, const MapCall& call);
void reduce(ThreadPool& pool, const ReduceCall& call);
void cumsum(ThreadPool& pool, const Tensor& out, const Tensor& x, int axis);
void index_add(const IndexAddCall& call);  // ids are known to be right
void top_k(ThreadPool& pool, const Tensor& values, const Tensor& ids, const Tensor& x,
           bool largest);
void gemm(ThreadPool& pool, const GemmCall& call);

}  // namespace plumb::cpu::plain
