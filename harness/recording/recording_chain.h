// The chained oracle in a recording: which checkpoints have to carry it.
#pragma once

#include <string_view>
#include <vector>

#include "harness/io/json.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// The outputs of a checkpoint that make the chain: the residual stream, the states after a call,
// the final norm (which is in no layer: its path has no number) and the logits.
std::vector<std::string_view> chain_outputs(const Checkpoint& checkpoint);
// The input that comes from the chained checkpoint before it; "" where there is none.
std::string_view main_input(const Checkpoint& checkpoint);

bool is_chained(const std::vector<Checkpoint>& checkpoints);

// Throws BadInput unless none or all of the outputs that make the chain carry the chained oracle,
// and no others, and there is an amplification where one of them is made of the one before it;
// `list` are the checkpoints in the file.
void check_chain(const std::vector<Checkpoint>& checkpoints, JsonValue list);

}  // namespace plumb::harness
