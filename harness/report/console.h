// The texts of a run for people: failures, one line per checkpoint, the closing table. Nothing here
// prints; all text from outside is made safe for a terminal, and all texts end with a line
// feed.
#pragma once

#include <string>
#include <vector>

#include "harness/result/result.h"
#include "harness/run/outcome.h"

namespace plumb::harness {

// Of a checkpoint that failed or could not be judged:
//   FAIL  sdpa  gemma2-a4/whole-bf16  model.layers.0.self_attn:sdpa#0     cpu bf16 fused
//         tensor error 3.1e-2, allowed 7.4e-3 (reference 3.6e-3)   worst head 3 (4.2x), in token >=
//         5 <CheckpointResult::details> again: harness --fixture ... --checkpoint ... --device cpu
std::string failure_text(const CheckpointResult& result, bool colour = false);

// Failures of one cause in a line: "sdpa cpu bf16: 38 checkpoints like this: softcap left out;
// worst 4.2x the limit in gemma2-a4/whole-bf16 model.layers.0.self_attn:sdpa#0".
std::string cause_text(const FailureGroup& group);

// One line of -v, for any status: tag, block, recording, checkpoint, device and dtype, the gate
// nearest to its limit or the reason, what it is blind to, the known bug nearest to passing.
std::string checkpoint_line(const CheckpointResult& result, bool colour = false);

// The end of a run: the table, features that nothing could see, what is unsupported and why, causes
// that several failures share, and one line with counts and verdict.
std::string closing_text(const Outcome& outcome, bool colour = false);

// "3.1e-2", "0.75", "412": two or three digits, the same in every locale.
std::string short_number(double x);

// Of a known bug: "12x the limit", "0.75x the limit: would pass".
std::string margin_text(const Margin& margin);

// "1.53", "0.07": seconds with two decimals, the same in every locale.
std::string seconds_text(double seconds);

bool is_terminal(int descriptor);
// On a terminal, unless NO_COLOR is set and not empty (no-color.org) or TERM is "dumb".
bool colours_wanted(int descriptor);

}  // namespace plumb::harness
