// Measuring a whole model: prefill and decode, if what they compute is right.
#pragma once

#include <string>
#include <vector>

#include "blocks/models/causal_lm.h"
#include "harness/bench/bench.h"

namespace plumb::harness {

struct ModelBenchOptions {
  int64_t tokens = 128;  // of the prompt
  int64_t steps = 32;    // single tokens behind it
  int prefills = 3;
};

struct ModelBenchResult {
  Status status = Status::pass;  // figures only when pass
  std::string reason;
  std::string impl;    // of one decode step
  double prefill = 0;  // seconds, the fastest
  // Seconds per step, the median; steps that are waited for together have their mean.
  double decode = 0, decode_p10 = 0, decode_p90 = 0;
  Cost step;  // of the decode step in the middle
  double guard_error = 0, guard_limit = 0;
  int64_t state_bytes = 0;  // of keys, values and Mamba2 states
  int64_t peak_rss = 0;     // bytes of this process so far, 0: not known here
};

// Measures a model, batch 1, behind random ids. Each step's token is the greedy choice of the one
// before, as `harness generate` makes it; the host waits once for several (Inference::at_once).
// Before and after the timing: every op of a decode step is judged on samples as run_bench() does,
// and single tokens behind half a prompt must give the logits of the whole prompt in one call. Does
// not throw for what the device does: that becomes the status.
ModelBenchResult run_model_bench(const blocks::CausalLm& model, Device& device, Device& oracle,
                                 const ModelBenchOptions& options);

// Bytes per second that a step has to move over those that a copy moves.
double decode_share(const ModelBenchResult& result, double copy);
// What peak_rss may be where the device works on host memory: weights, state and 256 MiB.
int64_t allowed_rss(const ModelBenchResult& result, int64_t weight_bytes);

}  // namespace plumb::harness
