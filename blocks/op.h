// Block "op": one op of the op table, whatever it is, on operands by the names of its row. Params
// are the op's name and its numbers: a unary or fused op's `number` and `shift`, `axes` of a
// reduction, and what ops.h calls the arguments of the others. Unsupported are ops that are parts
// of models, which have blocks of their own, and those that read no tensor.
#pragma once

#include "blocks/catalog.h"
#include "kernels/ops/table.h"

namespace plumb::blocks {

// The row of the op that params name; throws Unsupported where there is none.
const OpRow& row_of_call(const Params& params);

void run_op(const BlockCall& call);

}  // namespace plumb::blocks
