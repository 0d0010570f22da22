// One run of one block on one device: operands placed between canaries, outputs poisoned,
// everything that the block touched checked afterwards.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blocks/catalog.h"
#include "harness/execution/converted.h"
#include "harness/execution/placement.h"
#include "harness/recording/recording.h"
#include "kernels/ops/ops.h"

namespace plumb::harness {

// Reads and converts. Float tensors in the recording's dtype become `dtype`; tables that
// transformers keeps in float32 stay so unless `dtype` is f64; ids, positions and masks keep
// theirs.
HostOperands read_operands(const Recording& recording, const Checkpoint& checkpoint, DType dtype);

// The same dtypes and shapes, and zeros: to see what runs, whatever it computes.
HostOperands blank_operands(const Recording& recording, const Checkpoint& checkpoint, DType dtype);

struct Execution;

struct RunSetup {
  OpSet fused = OpSet().set();  // which fused ops may run in the device's own version
  uint8_t poison = 0xff;        // what outputs and scratch hold before the run (0xff bytes are NaN)
  blocks::Observer* observer = nullptr;  // sees the parts, below the checkpoint's path
  bool sums = false;                     // of large outputs, on the device
  const Execution* before = nullptr;  // by its sums: whose outputs are shared where they are equal
  PageEnd end = PageEnd::left;        // of their pages, where a plugin's operands are
};

struct Execution {
  std::map<std::string, Tensor> outputs;  // host, contiguous
  std::map<std::string, uint64_t> sums;   // checksums of the large ones, where wanted
  std::vector<OpRecord> records;
  std::vector<std::string> gradients;  // names of outputs, from the last ops of the block back
  std::string damage;       // "" or what was written that must not be: a canary, an input
  bool has_ends = false;    // the end of their pages at which operands are may matter
  double seconds = 0;       // of the block alone, the wait for its end included
  DeviceCounters counters;  // what the block alone made the device do; zeros without a counter
};

// Throws what the block throws: BadInput, Unsupported, UsageError, DeviceError.
Execution execute(const blocks::BlockEntry& block, const Checkpoint& checkpoint, Placement& placed,
                  Device& device, const RunSetup& setup);
// On a placement of its own.
Execution execute(const blocks::BlockEntry& block, const Checkpoint& checkpoint,
                  const HostOperands& operands, Device& device, const RunSetup& setup);

// Contracts of a plugin's kernels among those that ran that widen limits
// (kernels/plugin/plugin_device.h), each once.
std::vector<std::string> looser_contracts(const Ops& ops, const std::vector<OpRecord>& records);

// "linear/onednn", "sdpa/avx2": each once, in order of first use.
std::vector<std::string> implementations_of(const std::vector<OpRecord>& records);

}  // namespace plumb::harness
