// What a device that computes in float64 itself is held to, element by element: the oracle is in
// long double then. judge() alone would allow 1e-12 of the largest element (float64 agreement).
#pragma once

#include <functional>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/ops/judged_op.h"

namespace plumb::harness {

// |y - o| as the largest share of what is allowed: some units of o's last place, for formulas by
// what they may be off (kernels/ops/formulas.h); where they are composed, as much as their inputs'
// last places change o; and of a sum of n terms (n + 2) 2^-53 of the sum of their magnitudes,
// whatever their order. `oracle` runs the op in long double on other inputs.
Gate float64_op_gate(const JudgedOp& judged, size_t output, const Tensor& o, int64_t terms,
                     const std::function<Tensor(const std::vector<Tensor>& inputs)>& oracle);

}  // namespace plumb::harness
