// One checkpoint on several devices: each held to the recording and to the others, so that the one
// that differs has a name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/replay/replay.h"

namespace plumb::harness {

// Two devices' outputs of a checkpoint. Their difference, in the place of an error, has to stay
// within the limits of the coarser of the two: the same gates that hold each of them to the oracle.
struct Pair {
  size_t a = 0, b = 0;  // positions in the list of devices
  bool agree = false;
  Gate worst;                  // the gate nearest to its limit, or farthest beyond it
  std::string output;          // of that gate
  bool same_contract = false;  // then bits may be compared
  int64_t elements = 0, equal_bits = 0;
};

enum class Finding {
  agree,         // with each other, and with the recording
  alone,         // one device differs, and the others (or, of two, the recording) agree
  suspect,       // with each other, but not with the recording
  split,         // no majority
  not_compared,  // fewer than two devices came to a result
};
std::string_view name_of(Finding finding);

struct Comparison {
  std::vector<CheckpointResult> results;  // one per device
  std::vector<Pair> pairs;                // of those that came to a result
  Finding finding = Finding::not_compared;
  std::vector<size_t> look_at;  // devices
  std::string words;            // "cuda:0 differs from cpu and emu:64, which agree: look at cuda:0"
};

// `replayed`: with outputs, one per device. Scales come from the recorded oracle.
Comparison compare(const Recording& recording, const Checkpoint& checkpoint,
                   std::vector<Replayed> replayed);

}  // namespace plumb::harness
