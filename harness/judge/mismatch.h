// How many elements of a failed output are beyond the limit of one, and the largest differences.
#pragma once

#include <string>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/reference_scales.h"

namespace plumb::harness {

// "12 of 64 elements beyond the limit (19 %); largest difference 0.5 at (0, 3), relative 0.1 at
// (1, 2)": against the oracle, indices as the tensor has them. Where no gate is on elements those
// count that differ at all; "" where there is nothing to compare.
std::string mismatch_text(const std::vector<double>& y, const ReferenceScales& scales,
                          const std::vector<uint8_t>& valid, const std::vector<Gate>& gates);

}  // namespace plumb::harness
