// Measuring: how long a block takes on a device, next to what the device could do, and only if what
// it computes is right.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/cases.h"
#include "harness/bench/cost.h"
#include "harness/judge/status.h"
#include "kernels/core/device.h"

namespace plumb::harness {

struct BenchOptions {
  int batches = 20;      // timed batches at most
  double seconds = 0.5;  // per case, which may end the batches early (3 are always timed)
  bool fuse = true;
  double rotate_bytes = 256.0 * (1 << 20);  // operands in all: more than any cache holds
};

struct BenchResult {
  std::string block, name, shape;
  int64_t tokens = 0, context = 0;
  DType dtype = DType::bf16;
  Status status = Status::pass;  // figures only when pass
  std::string reason;
  std::string impl;                     // "linear/onednn sdpa/avx2"
  int64_t sets = 0;                     // of operands, used cyclically
  int64_t calls = 0;                    // timed
  bool replayed = false;                // recorded launches; else the host launched each call
  double median = 0, p10 = 0, p90 = 0;  // seconds per call, over the batches
  // Seconds of a copy that moves as many bytes, measured in the same way: what a short call can
  // reach on a device that needs megabytes to be busy. 0 where the matrix rate is the nearer
  // ceiling.
  double copy = 0;
  Cost cost;
};

// What the device reaches at best, measured.
struct Ceilings {
  double copy = 0;    // bytes/s of a copy, read and written
  double matrix = 0;  // flops/s of a large linear
};
Ceilings measure_ceilings(Device& device, DType dtype);
double measure_copy(Device& device);  // bytes/s

// max(bytes / copy, flops / matrix) / median: 1 is as fast as the copy or the product; and which.
struct Share {
  double value = 0;
  bool of_matrix = false;
};
Share share_of_ceiling(const BenchResult& result, const Ceilings& ceilings);

// Judges samples of the case, times it, judges again and compares with what the timed calls left.
// Does not throw for what the device does: that becomes the status.
BenchResult run_bench(const BenchCase& bench_case, const BenchShape& shape, const BenchSizes& sizes,
                      Device& device, Device& oracle, const Ceilings& ceilings,
                      const BenchOptions& options);

// "linear/onednn sdpa/avx2", each once, in order of first use.
std::string implementations(const std::vector<OpRecord>& records);

// Quantile 0 <= q <= 1 of a sorted, not empty list, linear between its elements.
double quantile(const std::vector<double>& sorted, double q);

}  // namespace plumb::harness
