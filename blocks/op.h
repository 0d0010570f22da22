// Block "op": one op of the op table, whatever it is, on operands by the names of its row. Params
// are the op's name and its numbers: a unary or fused op's `number` and `shift`, `axes` of a
// reduction, and what ops.h calls the arguments of the others. An op that is a part of models has a
// block of its own, with that block's params; here it is Unsupported, by that block's name.
#pragma once

#include "blocks/catalog.h"

namespace plumb::blocks {

void run_op(const BlockCall& call);

}  // namespace plumb::blocks
