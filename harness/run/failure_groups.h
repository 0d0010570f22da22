// Failures that have one cause, reported once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/result/result.h"

namespace plumb::harness {

// Checkpoints that fail alike: of one block on one device in one dtype, or wherever they are, where
// the device itself gave up in the same words (a race in a kernel that many blocks use).
struct FailureGroup {
  Status status = Status::fail;
  std::string block, device, dtype;  // "several blocks", "several dtypes" where they differ
  // "softcap left out", "device error", with # for numbers that differ; "": beyond its limits
  std::string cause;
  int64_t checkpoints = 0;
  double ratio = 0;  // of the worst: statistic / limit; 0 where no gate was computed
  std::string recording, checkpoint, reason, again;  // of the worst, or the first
};

// What failures of one cause have in common; numbers in texts, such as offsets, do not count.
std::string cause_key(const CheckpointResult& result);

// In order of first appearance.
std::vector<FailureGroup> failure_groups(const std::vector<CheckpointResult>& results);

// Which failures are the first of their cause, one after the other.
class FirstFailures {
 public:
  bool is_first(const CheckpointResult& result) { return ++seen_[cause_key(result)] == 1; }

 private:
  std::map<std::string, int64_t> seen_;
};

}  // namespace plumb::harness
