// Replay: a checkpoint run on a device and judged.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "harness/referee/cases.h"
#include "harness/result/result.h"

namespace plumb::harness {

struct ReplayOptions {
  std::optional<DType> dtype;  // of the run; the recording's own when absent (f64 on the oracle)
  bool fuse = true;
  int repeat = 2;        // runs whose bytes must agree; poisons alternate, so at least 2
  std::string impl;      // --impl: a regular expression, or empty
  std::string fixture;   // the recording as the user named it, for the repeat command
  int threads = 0;       // --threads, for the repeat command
  bool explain = true;   // what a failure looks like: known bugs, roundings, the composed block
  bool margins = false;  // how far known bugs are from passing (harness/referee/margins.h)
  RefereeRule referee = RefereeRule::affordable;
  bool shadow = false;  // chains: shadow errors of all layers, not only after a failure
};

// What came of one checkpoint.
struct Replayed {
  CheckpointResult result;
  std::map<std::string, Tensor> outputs;  // of the first run, in host memory, where they are wanted
};

// What is known of a result before anything has run: what it is of, and how to repeat it.
CheckpointResult result_to_be(const Recording& recording, const Checkpoint& checkpoint,
                              const std::string& device, const ReplayOptions& options);

// The same of a recording's chain.
CheckpointResult chain_to_be(const Recording& recording, const std::string& device,
                             const ReplayOptions& options);

DType dtype_of_run(const Recording& recording, const std::string& device,
                   const ReplayOptions& options);

// Where options.impl names nothing on the device, it chooses freely.
void force_impl(Device& device, const ReplayOptions& options);

class Replayer {
 public:
  // `oracle` is a second device ("oracle"), which may be `device` itself.
  Replayer(const Recording& recording, Device& device, Device& oracle, ReplayOptions options);

  // Never throws for what the checkpoint or the device does: that becomes the result's status.
  CheckpointResult run(const Checkpoint& checkpoint) { return run_and_keep(checkpoint).result; }
  Replayed run_and_keep(const Checkpoint& checkpoint);  // with the outputs, where it came so far

 private:
  const Recording& recording_;
  Device& device_;
  Device& oracle_;
  ReplayOptions options_;
};

}  // namespace plumb::harness
