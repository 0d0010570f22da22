// `harness bench --model`: what was asked for, and the run.
#pragma once

#include <string>

#include "harness/bench/model_bench.h"

namespace plumb::harness {

// What `harness bench --model` was asked for.
struct ModelBenchRequest {
  std::string model;  // a folder, or "random": of this shape
  std::string shape, device, dtype, impl, json;
  int threads = 0;
  bool fuse = true;
  ModelBenchOptions bench;
};

int bench_model(const ModelBenchRequest& request);

}  // namespace plumb::harness
