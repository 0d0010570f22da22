// What a recording alone says of one output, for a run of whoever.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/output_case.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// What the recording says of one output: reference, delta and valid elements, but no y.
OutputCase recorded_case(const Recording& recording, const Checkpoint& checkpoint,
                         const std::string& output);

// Of each gate the one that allows more: how the sums of another program are accumulated is not
// known.
std::optional<Spread> widest_spread(const std::optional<Spread>& spread,
                                    const std::optional<Spread>& truncated);

// For a contract that allows kernels something inside (Checkpoint::inside): only the recording's
// simulated kernels do that, so its limits are what these show, not those of our own block.
void take_inside(OutputCase& out, const Recording& recording, const Checkpoint& checkpoint);

// m of a recorded case as the traced run gave it; nothing where there was none, or it rounded where
// it should not have.
std::optional<Tensor> recorded_model(const Recording& recording, const Checkpoint& checkpoint,
                                     const OutputCase& output);

// Puts the run's whole output in the case of a sampled one: its chosen rows, and what there is to
// know of the others. `dtype`: of the run.
void sample_rows(Evidence& out, const Recording& recording, const Checkpoint& checkpoint,
                 const Tensor& y, DType dtype);

// The chosen tokens of a sampled output; BadInput unless they ascend within the output.
std::vector<int64_t> chosen_tokens(const Recording& recording, const Checkpoint& checkpoint,
                                   const std::string& output);

// The largest |score| that the recording states for an attention.
std::optional<double> stated_score(const Checkpoint& checkpoint);

// BadInput where the recorded operands give another score than is stated: the floor of a limit is
// computed from it, and more than q and k give would loosen that.
void require_stated_score(const Checkpoint& checkpoint, double computed);

}  // namespace plumb::harness
