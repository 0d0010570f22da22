// What an op has to move and to compute, from its contract: every input element read once, every
// output element written once.
#pragma once

#include <vector>

#include "kernels/ops/ops.h"

namespace plumb::harness {

struct Cost {
  double bytes = 0;
  double flops = 0;

  Cost& operator+=(const Cost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
};

// Undefined tensors cost nothing. Of an embedding's table only the rows that are asked for count. A
// product of M x K by K x N has 2 M N K flops, attention two products over the pairs of query and
// key that its mask allows, and of keys and values only the slots that some query may see are read;
// elsewhere every operation of the formula in kernels/ops/ops.h counts as one per element, and so
// does a function (exp, tanh, erf).
Cost cost_of(const OpCall& call);

// The slots [begin, end) that query t may see under causal and window.
struct KeyRange {
  int64_t begin = 0, end = 0;
};
KeyRange visible_keys(const AttentionMask& mask, int64_t query, int64_t keys);

}  // namespace plumb::harness
