// The gates on the bits of a 16-bit output: how many differ from the rounded model, how far one of
// them is off, how many are in one channel.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "harness/judge/limit_basis.h"
#include "harness/judge/output_case.h"
#include "harness/judge/verdict.h"

namespace plumb::harness {

// How an output's bits compare with the model that they are held to.
struct MeasuredBits {
  Conformance found;
  SmallParts parts = {};
  bool few = true;  // so few differ that the parts say something
};

// Of other outputs than y, which have a say where y's bits are beyond their limits.
struct OtherBits {
  std::optional<MeasuredBits> reference;  // none: there is none that counts
  // Takes time, and is asked for last; empty: there are none.
  std::function<std::vector<MeasuredBits>()> simulated;
};

// Adds them where they apply; says in the verdict where the reference does not follow its model.
void conformance_gates(OutputVerdict& verdict, const OutputCase& output, const CaseArrays& arrays);
// Those of bits that were measured, and are enough to say something.
void bits_gates(OutputVerdict& verdict, const Rule& rule, const Allowance& allowance,
                const Layout& layout, const ConformanceRule& of_bits, MeasuredBits y,
                const OtherBits& others);

}  // namespace plumb::harness
