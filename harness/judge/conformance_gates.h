// The gates on the bits of a 16-bit output: how many differ from the rounded model, how far one of
// them is off, how many lie in one channel.
#pragma once

#include "harness/judge/limit_basis.h"
#include "harness/judge/output_case.h"
#include "harness/judge/verdict.h"

namespace plumb::harness {

// Adds them where they apply; says in the verdict where the reference does not follow its model.
void conformance_gates(OutputVerdict& verdict, const OutputCase& output, const CaseArrays& arrays);

}  // namespace plumb::harness
