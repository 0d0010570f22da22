// Runs faults against the project's own recordings.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/replay/replay.h"
#include "tests/faults/fault.h"

namespace plumb::harness::testing {

// One checkpoint of one recording.
struct Case {
  const Recording* recording;
  const Checkpoint* checkpoint;
};

// All recordings, with the device whose ops are made wrong (cpu, one thread) and the oracle.
class Suite {
 public:
  Suite();

  Device& device() { return *device_; }
  Device& oracle() { return *oracle_; }
  // The checkpoints of a block: the first of every recording, then the second of every recording,
  // ...
  const std::vector<Case>& cases(const std::string& block) const { return by_block_.at(block); }
  std::vector<std::string> blocks() const;

  // Whether our own float64 block has a say in what run() says from here on.
  void judge_by(RefereeRule rule);
  RefereeRule rule() const { return rule_; }
  bool alone() const { return rule_ == RefereeRule::never; }

  CheckpointResult run(const Case& checkpoint, Device& device);
  CheckpointResult run(const Case& checkpoint, Device& device, Device& oracle);
  // Without a fault.
  const CheckpointResult& right(const Case& checkpoint);
  // What a recording is held to once, by it alone: the oracle device in float64, then in the
  // recording's dtype. The first that is not green, or the last.
  CheckpointResult verification(const Case& checkpoint, Device& oracle);

 private:
  std::vector<Recording> recordings_;
  std::map<std::string, std::vector<Case>> by_block_;
  std::map<const Checkpoint*, CheckpointResult> right_;
  std::unique_ptr<Device> device_, oracle_;
  RefereeRule rule_ = RefereeRule::affordable;
};

// The one of this program.
Suite& suite();

// What the harness made of a fault.
struct Kills {
  int reached = 0;                 // checkpoints of its block that the wrong op took part in
  int killed = 0;                  // of these, with status fail
  Case first{};                    // the first of those
  std::string reason;              // what the harness said about it
  std::vector<std::string> wrong;  // what must not happen, in words
};

// Runs the fault on the checkpoints of its block, until one fails or on all of them.
// By the recording alone a fault of numbers, which are the recording's, is also killed by its
// verification.
Kills kills_of(const Fault& fault, bool all);

// The same with the fault in the oracle device, too: what the judge computes itself is as wrong.
Kills common_kills_of(const Fault& fault, bool all);

// Runs the fault on one f32 and one 16-bit checkpoint of every other block. What the wrong op took
// no part in must pass as without the fault: recorded inputs isolate it. Gives what did not.
std::vector<std::string> not_isolated(const Fault& fault);

}  // namespace plumb::harness::testing
