// NaN and infinity, settled before any number is compared.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace plumb::harness {

enum class ValueClass : uint8_t { finite, plus_infinity, minus_infinity, nan };
ValueClass class_of(double x);

struct ClassCounts {
  int64_t finite = 0;
  int64_t plus_infinity = 0;
  int64_t minus_infinity = 0;
  int64_t nan = 0;
};

// What the rules say of one element: compare its value; not finite, and rightly so; wrong.
enum class ClassOutcome : uint8_t { compare, skip, wrong };

// The outcome of the class rules. Positions are in the [rows, columns] matrix; -1: none.
struct ClassCheck {
  ClassCounts y, reference, rounded;  // over valid elements; rounded = round(o)
  int64_t wrong = 0;                  // valid elements of a class that is not allowed
  int64_t first_wrong = -1;
  int64_t padded_wrong = 0;  // invalid elements that are not finite
  int64_t first_padded_wrong = -1;
  int64_t range_hazards = 0;   // allowed elements whose class is round(o)'s, not the reference's
  int64_t unknown_oracle = 0;  // wrong ones where the reference overflowed and o was not recorded
  std::vector<ClassOutcome> outcomes;  // per element; compare for invalid ones
};

// All arrays have one size; `storage` is the dtype of y. Rules, for valid elements: y NaN where the
// reference is not NaN is wrong; otherwise y has the class of the reference, or of round(o). Where
// a recording does not hold what overflowed in the reference, o is NaN ("unknown"): there only the
// reference's class is right. An invalid element must be finite, have the reference's class, or be
// an infinity that the reference has elsewhere: which of two tied logits is masked is a choice.
ClassCheck check_classes(const std::vector<double>& y, const std::vector<double>& reference,
                         const std::vector<double>& o, const std::vector<uint8_t>& valid,
                         DType storage);

}  // namespace plumb::harness
