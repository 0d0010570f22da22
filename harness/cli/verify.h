// The default command's options, and its suite of single ops.
#pragma once

#include <string>

#include "harness/cli/replay_command.h"
#include "harness/report/reports.h"

namespace plumb::harness {

struct VerifyArguments : ReplayCommand {
  bool fail_fast = false, strict = false, verbose = false;
  bool shadow = false, margins = false, no_times = false;
  std::string mode = "isolated", shard, shard_by = "checkpoints", journal;
  std::string relations;  // "contract", "bits"; empty: not tried
  ReportPaths reports;
};

// Whether that is what is asked for. UsageError where something else is, too.
bool verifies_ops(const VerifyArguments& options);
int verify_ops(const VerifyArguments& options);

}  // namespace plumb::harness
