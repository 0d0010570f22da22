// What `--contract` asks for: "eager+sums-16".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/recording/recording.h"
#include "harness/result/result.h"
#include "kernels/ops/contract.h"

namespace plumb::harness {

struct AskedContract {
  std::optional<RoundingPoints> points;  // nothing: inferred from the bits
  std::vector<std::string> inside;       // words of harness/recording/inside.h
};

// UsageError, with all words that there are, for what is none.
AskedContract asked_contract(std::string_view words);

// What happens inside is what the recording's simulated kernels do: UsageError, which says how to
// record it, where that is not what is asked for. A contract that asks for none takes what the
// recording states.
void require_recorded_with(const Recording& recording, const AskedContract& asked);

// Whether kernels of a run in this dtype may do what the recorded contract allows inside.
bool allows_inside(const Checkpoint& checkpoint, const Recording& recording, DType dtype);

// Says in the result what is allowed inside.
void note_inside(const Checkpoint& checkpoint, CheckpointResult& result);

// A contract in words, with what it allows inside: "bf16 acc24 eager+sums-16".
std::string contract_text(const Contract& contract, const std::vector<std::string>& inside);

}  // namespace plumb::harness
