// What a device made in a chain against the chained oracle.
#pragma once

#include <optional>

#include "harness/judge/chain_figures.h"
#include "harness/judge/model_gates.h"
#include "harness/recording/recording.h"

namespace plumb::harness {

// Sets the row's reference error, chained error and limit, and whether it is saturated. In float64
// the error is the largest of an element, of max |o|. Throws BadInput where the chained oracle is
// not finite and the reference is. `judged`: of judged_tokens().
void compare_chained(ChainRow& row, const Recording& recording, const Checkpoint& checkpoint,
                     const Tensor& y, const Tensor& judged, DType dtype);

// Isolated errors are parts of at least the smallest normal number, chained ones of the output
// itself: the quotient of the two, at least 1.
double size_ratio(const Recording& recording, const Checkpoint& checkpoint,
                  const std::string& output);

// Two runs' values of one output, where it is judged.
struct Between {
  const Recording& recording;
  const Checkpoint& checkpoint;
  const std::string& output;
  const Tensor& judged;

  // E(y - o) over them; NaN where a shape is not the recorded one.
  double error(const Tensor& y, const Tensor& o) const;
  // Logits, token by token; o serves as the reference, too.
  void add_tokens(std::vector<TokenLogits>& to, const Tensor& y, const Tensor& o) const;
};

// The last tokens of [B, T, ...], contiguous: logits of which a recording keeps some.
Tensor last_tokens(const Tensor& t, int64_t count);

// Which tokens of an output are off, in words; empty: none by themselves. A token may be as far off
// as the worst of the reference, times the c and kappa of chained limits.
std::string wrong_tokens(const Recording& recording, const Checkpoint& checkpoint,
                         const ChainRow& row, const Tensor& y, const Tensor& judged);

// Bytes of the slots which were stored before a call that differ after it: slots count along
// `axis`, a call adds `fresh` of them behind the others and drops as many as are too many. In a
// state of fixed length `seen` tokens came before the call: unused slots must stay as they are,
// too.
int64_t changed_bytes(const Tensor& before, const Tensor& after, int axis, int64_t fresh,
                      std::optional<int64_t> seen = std::nullopt);

// The judged tokens of logits.
void add_tokens(std::vector<TokenLogits>& to, const Recording& recording,
                const Checkpoint& checkpoint, const Tensor& y, const Tensor& judged,
                const std::vector<std::vector<int64_t>>& next_ids);

}  // namespace plumb::harness
