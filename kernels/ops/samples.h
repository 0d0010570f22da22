// Calls of an op, made from its row: extents around vectors, waves and tiles, one element and none,
// absent operands, axes of 1 that are repeated, and every choice of the other arguments. They are
// the same on every machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/laid_out.h"
#include "kernels/ops/op_call.h"

namespace plumb {

struct OpSample {
  std::string name;                    // "bf16/padded#3"
  OpCall call;                         // its tensors are dense, on the host
  Layout layout = Layout::contiguous;  // that they are to have on a device
  bool in_place = false;               // the first input in the first output's place
};

// The storage dtypes of an op's row, those that every op has first; the others have fewer calls.
std::vector<DType> sampled_dtypes(OpId op);
// `wanted` says by its name whether one is made: drawing values is what takes time.
std::vector<OpSample> samples_of(
    OpId op, DType storage,
    const std::function<bool(const std::string&)>& wanted = [](auto&) { return true; });

}  // namespace plumb
