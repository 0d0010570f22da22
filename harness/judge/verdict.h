// The verdict on one output: classes, gates, conformance, blindness, and the place of an error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/classes.h"
#include "harness/judge/conformance.h"
#include "harness/judge/details.h"
#include "harness/judge/limits.h"
#include "harness/judge/localise.h"
#include "harness/judge/output_case.h"
#include "harness/judge/statistics.h"
#include "harness/judge/status.h"

namespace plumb::harness {

struct OutputVerdict {
  std::string name;  // of the output
  Status status = Status::fail;
  std::string reason;       // "" for pass
  std::vector<Gate> gates;  // structure, classes, padding, then those of the rule that applies
  ClassCheck classes;
  Statistics statistics;      // of y
  Statistics reference;       // of the reference; not for bitwise and float64 outputs
  double recorded_error = 0;  // E_T of r itself: what the recording calls `error`
  // Why limits are not the reference's own errors: it is worse than a correct run's can be. Empty
  // where nothing is wrong with it.
  std::string golden_suspect;
  // Which rows correct kernels do not agree on, or that they differ too much for any verdict. Empty
  // where they do not.
  std::string ill_conditioned;
  bool unjudged = false;  // more than half of it is not judged, so that its pass proves nothing
  std::string rounding;   // which roundings the bits follow, where that was inferred
  Floors floors;
  Details details;
  std::optional<Conformance> conformance;
  std::optional<Localisation> where;  // for failures
  std::string mismatch;  // of failures: how many elements are beyond the limit, how far at most
};

// Judges one output. Gates, in this order and all of them (AND):
//   structure; classes; padding (invalid elements finite);
//   float64 block: ours makes o of the recorded operands, as the float64 rule below says;
//   bitwise contracts and integers: bits (y = round(o));
//   y in f64: float64 agreement, |y - o| <= 1e-12 max|o| + max(2^-24 |delta|, 2^-150);
//   others: the gates of limits.h, then conformance.
// A reference that is itself beyond what its rounded model, a floor or simulated correct kernels
// allow is suspect, and limits come from those.
// Rows that are ill conditioned are set aside first. bad_input when the recording contradicts
// itself (o not finite where r is), blind when all gates passed but o is empty, zero or constant,
// or correct kernels do not agree on any row of it. Throws UsageError when the case lacks what it
// needs.
OutputVerdict judge(const OutputCase& output);

// Whether an error of a failure is so large that it is no matter of roundings.
bool is_gross(const OutputVerdict& verdict);

// The verdict on a checkpoint: the worst status of its outputs and that output's reason; blind when
// every output is, or one because it is ill conditioned or unjudged.
struct Verdict {
  Status status = Status::fail;
  std::string reason;  // with several outputs preceded by the output's name
  std::vector<OutputVerdict> outputs;
};
Verdict combine(std::vector<OutputVerdict> outputs);

}  // namespace plumb::harness
