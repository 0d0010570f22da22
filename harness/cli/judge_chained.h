// harness judge --mode chained: a whole model of another program, from its logits and layers.
#pragma once

#include <string>

#include "harness/recording/select.h"
#include "harness/report/reports.h"

namespace CLI {
class App;
}

namespace plumb::harness {

struct ChainedJudgement {
  std::string folder, outputs;  // of the recording; the safetensors file
  ReportPaths reports;
  Selection selection;   // must be empty
  std::string contract;  // of judge's --contract; names no rounding of outputs
  bool strict, verbose;
};

void add_judge_mode(CLI::App& app, std::string& mode);
// Returns the exit code.
int judge_chained(const ChainedJudgement& asked);

}  // namespace plumb::harness
