// The figures of a benchmark as JSON lines and as a table.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/bench.h"
#include "harness/bench/model_bench.h"
#include "kernels/core/device.h"

namespace plumb::harness {

// {"type": "ceilings", ...}: what every share is a share of.
std::string ceilings_json(const Device& device, DType dtype, const Ceilings& ceilings);
// {"type": "bench", ...}; without figures unless the status is pass.
std::string bench_json(const BenchResult& result, const Device& device, const Ceilings& ceilings);

// A table for a terminal, a line per result, then the reasons of those without figures.
std::string bench_table(const std::vector<BenchResult>& results, const Ceilings& ceilings);

// What was measured, how long it took to load (seconds), and bytes/s of a copy there.
struct ModelBenchLabels {
  std::string model;
  DType dtype;
  ModelBenchOptions options;
  int64_t weight_bytes;
  double load, copy;
};
// {"type": "model_bench", ...}; without figures unless the status is pass.
std::string model_bench_json(const ModelBenchResult& result, const Device& device,
                             const ModelBenchLabels& labels);
// Some lines for a terminal.
std::string model_bench_text(const ModelBenchResult& result, const Device& device,
                             const ModelBenchLabels& labels);

}  // namespace plumb::harness
