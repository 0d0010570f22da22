// Rows of an output that correct kernels do not agree on (sums that overflow, differences of which
// nothing is left): any value would be within what they show, and the limits of all other rows
// would be as wide. They are set aside, and the rest is judged without them.
#pragma once

#include <optional>
#include <string>

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

// "2 of 20 rows are ill conditioned ... and set aside: token 3; token 7"; "" where none is.
std::string words_of_ill_rows(const Evidence& evidence, const CaseArrays& arrays);

}  // namespace plumb::harness
