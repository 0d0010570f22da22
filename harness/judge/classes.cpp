#include "harness/judge/classes.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/shared_loop.h"

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

void add(ClassCounts& to, const ClassCounts& part) {
  to.finite += part.finite;
  to.plus_infinity += part.plus_infinity;
  to.minus_infinity += part.minus_infinity;
  to.nan += part.nan;
}

// `part` has the elements that follow those of `to`.
void add(ClassCheck& to, const ClassCheck& part) {
  add(to.y, part.y);
  add(to.reference, part.reference);
  add(to.rounded, part.rounded);
  to.range_hazards += part.range_hazards;
  to.unknown_oracle += part.unknown_oracle;
  if (to.wrong == 0) to.first_wrong = part.first_wrong;
  if (to.padded_wrong == 0) to.first_padded_wrong = part.first_padded_wrong;
  to.wrong += part.wrong;
  to.padded_wrong += part.padded_wrong;
}

// Which the reference has somewhere.
struct Infinities {
  bool plus = false, minus = false;
};

// Only looked for where y has one that is not judged.
Infinities infinities_of(const std::vector<double>& y, const std::vector<double>& reference,
                         const std::vector<uint8_t>& valid) {
  bool asked = false;
  for (size_t i = 0; i < y.size() && !asked; ++i) asked = !valid[i] && std::isinf(y[i]);
  Infinities out;
  for (size_t i = 0; asked && i < reference.size(); ++i) {
    out.plus = out.plus || class_of(reference[i]) == ValueClass::plus_infinity;
    out.minus = out.minus || class_of(reference[i]) == ValueClass::minus_infinity;
  }
  return out;
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
  static_assert(ClassOutcome() == ClassOutcome::compare);
  std::vector<ClassOutcome> outcomes = shared_zeros<ClassOutcome>(y.size());
  const double largest = info(storage).max, finite = std::numeric_limits<double>::max();
  const Infinities infinities = infinities_of(y, reference, valid);
  const auto check_part = [&](size_t begin, size_t end) {
    ClassCheck out;
    int64_t ordinary = 0;  // valid, and all three finite
    for (size_t i = begin; i < end; ++i) {
      if (valid[i] && std::fabs(y[i]) <= finite && std::fabs(reference[i]) <= finite &&
          std::fabs(o[i]) <= largest) {
        ++ordinary;
        continue;
      }
      const ValueClass of_y = class_of(y[i]);
      const ValueClass of_reference = class_of(reference[i]);
      if (!valid[i]) {
        const bool allowed = of_y == ValueClass::finite || of_y == of_reference ||
                             (of_y == ValueClass::plus_infinity && infinities.plus) ||
                             (of_y == ValueClass::minus_infinity && infinities.minus);
        if (!allowed) note(out.padded_wrong, out.first_padded_wrong, i);
        continue;
      }
      const bool may_overflow =
          !(std::fabs(o[i]) <= largest);  // rounding is dear, and rarely needed
      const ValueClass of_rounded = class_of(may_overflow ? round_to(storage, o[i]) : o[i]);
      count(out.y, of_y);
      count(out.reference, of_reference);
      count(out.rounded, of_rounded);
      const bool as_rounded = of_y != ValueClass::nan && of_y == of_rounded;
      if (of_y == of_reference || as_rounded) {
        if (of_y != of_reference) ++out.range_hazards;
        if (of_y != ValueClass::finite) outcomes[i] = ClassOutcome::skip;
        continue;
      }
      note(out.wrong, out.first_wrong, i);
      outcomes[i] = ClassOutcome::wrong;
      const bool overflowed = of_reference != ValueClass::finite;
      if (overflowed && std::isnan(o[i]) && of_y == ValueClass::finite) ++out.unknown_oracle;
    }
    out.y.finite += ordinary;
    out.reference.finite += ordinary;
    out.rounded.finite += ordinary;
    return out;
  };
  ClassCheck out;
  for (const ClassCheck& part : shared_parts(y.size(), check_part)) add(out, part);
  out.outcomes = std::move(outcomes);
  return out;
}

}  // namespace plumb::harness
