// The fastest of a device's ways to compute a linear of one shape, by measurement.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/bench.h"
#include "kernels/ops/tuned_linears.h"

namespace plumb::harness {

struct LinearTuning {
  LinearShape shape;
  Status status = Status::pass;  // of what the device chooses itself; figures only when pass
  std::string reason;
  std::string first, best;                     // implementations: "linear/cublaslt"
  double first_seconds = 0, best_seconds = 0;  // per call, medians of the same alternating rounds
  int ways = 0;                                // that were right and measured
  bool kept = false;                           // whether `best` is what linear takes from now on

  double gain() const { return first_seconds / best_seconds; }
};

// Every linear of a published shape, of so many rows: q, k and v, o, gate and up, down, head.
std::vector<LinearShape> linears_of(const BenchShape& shape, int64_t rows, DType dtype);

// Measures each way that is right, then the fastest and the device's own in alternating rounds:
// it is kept where it is at least 2 % faster in their medians, and faster in most rounds.
LinearTuning tune_linear(const LinearShape& shape, Device& device, Device& oracle,
                         const Ceilings& ceilings, const BenchOptions& options);

}  // namespace plumb::harness
