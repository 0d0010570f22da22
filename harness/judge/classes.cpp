#include "harness/judge/classes.h"

#include <cmath>

namespace plumb::harness {
namespace {

void count(ClassCounts& counts, ValueClass c) {
  switch (c) {
    case ValueClass::finite: ++counts.finite; break;
    case ValueClass::plus_infinity: ++counts.plus_infinity; break;
    case ValueClass::minus_infinity: ++counts.minus_infinity; break;
    case ValueClass::nan: ++counts.nan; break;
  }
}

void note(int64_t& total, int64_t& first, size_t i) {
  if (total++ == 0) first = static_cast<int64_t>(i);
}

}  // namespace

ValueClass class_of(double x) {
  if (std::isfinite(x)) return ValueClass::finite;
  if (std::isnan(x)) return ValueClass::nan;
  return x > 0 ? ValueClass::plus_infinity : ValueClass::minus_infinity;
}

ClassCheck check_classes(const std::vector<double>& y, const std::vector<double>& reference,
                         const std::vector<double>& o, const std::vector<uint8_t>& valid,
                         DType storage) {
  ClassCheck out;
  out.outcomes.assign(y.size(), ClassOutcome::compare);
  const double largest = info(storage).max;
  for (size_t i = 0; i < y.size(); ++i) {
    const ValueClass of_y = class_of(y[i]);
    const ValueClass of_reference = class_of(reference[i]);
    if (!valid[i]) {
      const bool allowed = of_y == ValueClass::finite || of_y == of_reference;
      if (!allowed) note(out.padded_wrong, out.first_padded_wrong, i);
      continue;
    }
    const bool may_overflow = !(std::fabs(o[i]) <= largest);  // rounding is dear, and rarely needed
    const ValueClass of_rounded = class_of(may_overflow ? round_to(storage, o[i]) : o[i]);
    count(out.y, of_y);
    count(out.reference, of_reference);
    count(out.rounded, of_rounded);
    const bool as_rounded = of_y != ValueClass::nan && of_y == of_rounded;
    if (of_y == of_reference || as_rounded) {
      if (of_y != of_reference) ++out.range_hazards;
      if (of_y != ValueClass::finite) out.outcomes[i] = ClassOutcome::skip;
      continue;
    }
    note(out.wrong, out.first_wrong, i);
    out.outcomes[i] = ClassOutcome::wrong;
    const bool overflowed = of_reference != ValueClass::finite;
    if (overflowed && std::isnan(o[i]) && of_y == ValueClass::finite) ++out.unknown_oracle;
  }
  return out;
}

}  // namespace plumb::harness
