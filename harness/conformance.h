// Conformance: 16-bit outputs judged by their bits, against the contract's rounded model m (the
// float64 block, rounded to storage at exactly the contract's rounding points).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/output_case.h"
#include "kernels/dtype.h"

namespace plumb {

struct Conformance {
  int64_t n = 0;       // elements compared
  int64_t differ = 0;  // y != m; -0 equals +0, NaN equals NaN
  int64_t first = -1;  // position of the first that differs
  double q = 0;      // share that a correct kernel may have: 0.003 + 3 F_acc / u_store (+ cascades)
  double limit = 0;  // max(8, n q + 3 sqrt(n q)) + w
  bool passed = false;  // !!(differ <= limit)
};

// Applies to f16 and bf16 storage and at least 64 elements.
bool conformance_applies(DType storage, int64_t n);

// accumulation: F_acc. cascade: F_1 of the stages whose flips feed a later sum (0: none), which
// adds 2 sqrt(3 F_1 / u_store) to q. w: outputs that one upstream rounding feeds.
Conformance conformance(const std::vector<double>& y, const std::vector<double>& model,
                        const std::vector<uint8_t>& valid, double accumulation, double u_store,
                        double cascade, int64_t w);

// One way to round the same block.
struct Candidate {
  std::string name;  // "weight before cast"
  Tensor model;
};

// "rounds like: weight before cast (0.02 % differ), not like: HF eager (26 %)"; "rounds like none:
// ..." when no candidate is within the limit of conformance; "" without candidates.
std::string classify(const OutputCase& output, const std::vector<Candidate>& candidates);

}  // namespace plumb
