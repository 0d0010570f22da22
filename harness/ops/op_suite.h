// The suite "ops": every op on calls made from its row (kernels/ops/samples.h), held to the float64
// oracle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/result/result.h"
#include "kernels/ops/samples.h"

namespace plumb::harness {

struct OpCase {
  OpId op;
  DType storage;
  OpSample sample;
  std::string id() const;
};

// `wanted` says by its id whether a case is made, which takes longer than most of them run.
std::vector<OpCase> cases_of(
    OpId op, std::optional<DType> storage = {},
    const std::function<bool(const std::string&)>& wanted = [](auto&) { return true; });
// `wanted`: an id, or else a regular expression searched in ids; empty: all. UsageError where it is
// neither.
std::vector<OpCase> op_cases(const std::string& wanted = {}, std::optional<DType> storage = {});

// What of rows in other calls is demanded: what contracts promise, or the same bits of all.
enum class RowDemand : uint8_t { contract, bits };

struct RelationTally {
  int64_t tried = 0, not_tried = 0;  // cases
  int64_t calls = 0;
  std::map<std::string, int64_t> within =
      {};  // by op: calls with other bits that are within limits
};
std::string to_string(const RelationTally& tally);

struct OpRunOptions {
  bool fuse = true;
  int repeat = 2;  // runs whose bytes must agree; what memory holds before them alternates
  std::string options = {};                 // of the repeat command
  std::optional<RowDemand> relations = {};  // tried of what passes
  RelationTally* tally = nullptr;           // with them
};

// Never throws for what the device does: that becomes the result's status.
CheckpointResult run_op(const OpCase& op, Device& device, Device& oracle,
                        const OpRunOptions& options = {});

}  // namespace plumb::harness
