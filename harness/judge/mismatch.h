// How many elements of a failed output are beyond the limit of one, and the largest differences.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/reference_scales.h"

namespace plumb::harness {

// A difference, and the row-major position in the output where it is.
struct LargestDifference {
  double value = 0;
  int64_t at = 0;
};

struct Mismatch {
  int64_t differ = 0, n = 0;  // elements, of so many that are valid
  bool limited = true;        // those count that are beyond the limit of an element
  std::optional<LargestDifference> absolute, relative;
};
std::string words_of(const Mismatch& found, const Layout& layout);

// "12 of 64 elements beyond the limit (19 %); largest difference 0.5 at (0, 3), relative 0.1 at
// (1, 2)": against the oracle, indices as the tensor has them. Where no gate is on elements those
// count that differ at all; "" where there is nothing to compare.
std::string mismatch_text(const std::vector<double>& y, const ReferenceScales& scales,
                          const std::vector<uint8_t>& valid, const std::vector<Gate>& gates);

}  // namespace plumb::harness
