// Replay: a checkpoint run on a device and judged.
#pragma once

#include <optional>
#include <string>

#include "harness/cases.h"
#include "harness/result.h"

namespace plumb {

struct ReplayOptions {
  std::optional<DType> dtype;  // of the run; the recording's own when absent (f64 on the oracle)
  bool fuse = true;
  int repeat = 2;       // runs whose bytes must agree; poisons alternate, so at least 2
  std::string impl;     // --impl: a regular expression, or empty
  std::string fixture;  // the recording as the user named it, for the repeat command
};

class Replayer {
 public:
  // `oracle` is a second device ("oracle"), which may be `device` itself.
  // Throws UsageError when options.impl names nothing on the device.
  Replayer(const Recording& recording, Device& device, Device& oracle, ReplayOptions options);

  // Never throws for what the checkpoint or the device does: that becomes the result's status.
  CheckpointResult run(const Checkpoint& checkpoint);

 private:
  void replay(const Checkpoint& checkpoint, CheckpointResult& result);
  Verdict verify(const BlockEntry& block, const Checkpoint& checkpoint, OpSet fused,
                 CheckpointResult* result);
  std::vector<OutputCase> cases(const BlockEntry& block, const Checkpoint& checkpoint,
                                const HostOperands& operands, const Execution& execution);
  void explain(const BlockEntry& block, const Checkpoint& checkpoint, CheckpointResult& result);

  const Recording& recording_;
  Device& device_;
  Device& oracle_;
  ReplayOptions options_;
  DType dtype_;
};

}  // namespace plumb
