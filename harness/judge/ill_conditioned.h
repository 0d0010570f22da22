// Rows of an output that correct kernels do not agree on (sums that overflow, differences of which
// nothing is left): any value would be within what they show, and the limits of all other rows
// would be as wide. They are set aside, and the rest is judged without them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/limit_basis.h"
#include "harness/judge/output_case.h"
#include "harness/judge/reference_scales.h"

namespace plumb::harness {

// Whether a row may be one: the statistics used as the reference's are as far off in some row.
bool may_be_ill(const Statistics& reference, const ReferenceScales& scales);

// The case with `ill_conditioned`, where our own simulated kernels are off by more than
// kLimits.ill_conditioned of a row's size on average; nothing where they are not, or there are
// none. What was recorded of simulated kernels is of all rows, and is left out.
std::optional<OutputCase> without_ill_rows(const OutputCase& output, const CaseArrays& arrays,
                                           const ReferenceScales& scales);

// Rows set aside have no limit of their own, but no rounding explains what is far beyond the errors
// that the reference and its model have in them:
//   max_g |y - o|_g / max(e_g, min(e, e' |o|_g), 0.1 |o|_g) <= 32
// over rows g set aside, |.| the root mean square, e_g the larger error of r and m in g, e the
// largest of them and e' the largest e_g / |o|_g. Rows in which one of these overflows are left
// out.
Gate set_aside_gate(const Evidence& evidence, const CaseArrays& arrays,
                    const std::vector<double>& oracle);

// Whether more than half of an output's rows are set aside.
bool most_is_set_aside(const Evidence& evidence, const CaseArrays& arrays);

// "2 of 20 rows are ill conditioned ... and set aside: token 3; token 7"; "" where none is.
std::string words_of_ill_rows(const Evidence& evidence, const CaseArrays& arrays);

}  // namespace plumb::harness
