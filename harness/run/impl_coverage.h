// Coverage of implementations: which of a device's kernels the selected checkpoints run.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/process/isolated.h"
#include "harness/recording/recording.h"
#include "harness/replay/replay.h"

namespace plumb::harness {

struct ImplCoverage {
  struct Row {
    std::string name;                                // "linear/gemv.m4"
    std::string absent;                              // why nothing here can run it, or empty
    std::map<DType, std::set<std::string>> ran;      // checkpoints, by the dtype of the run
    std::map<DType, std::set<std::string>> failing;  // those of them that were forced and failed
    bool forced = false;                             // nothing runs it unless --impl does
    bool sampled = false;                            // only calls made from the op's row do
    bool covered() const { return !ran.empty(); }
  };
  std::vector<Row> rows;      // in the order of the device's own list
  std::set<std::string> ops;  // that the checkpoints ran

  // Every implementation that can run here did, and those that had to be forced passed.
  bool complete() const;
};

// Runs the checkpoints in their recording's dtype (small ones in f32, f16 and bf16), fused and
// composed, on zeros: what may run depends on params, dtypes and shapes alone, and verifying judges
// the values. What nothing ran is then forced on the smallest checkpoint that it can compute; no
// verifying sees that: it is judged here. An op that none calls is run, and judged, on calls made
// from its row; unless `every_op`, it is left out.
// A recording is named with the indices of its selected checkpoints.
struct SelectedRecording {
  Recording recording;
  std::vector<size_t> checkpoints;
};
ImplCoverage impl_coverage(const std::vector<SelectedRecording>& selected, Device& device,
                           Device& oracle, bool every_op, const Step& step);

// Of all operands of a checkpoint, outputs too.
int64_t elements_of(const Recording& recording, const Checkpoint& checkpoint);

// One line per implementation, then what is missing.
std::string to_text(const ImplCoverage& coverage);

}  // namespace plumb::harness
