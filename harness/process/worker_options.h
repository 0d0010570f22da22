// How work is done in a process of its own.
#pragma once

#include <cstdint>

namespace plumb::harness {

struct WorkerOptions {
  bool own_process = true;    // false: here, for debuggers; then a crash is a crash of the program
  double timeout = 600;       // seconds without a result after which a worker is killed; 0: never
  bool keep_outputs = false;  // results come with the outputs' values
  int threads = 0;            // that read operands and judge while the device runs; 0: one per core
  int64_t memory = 0;         // bytes of operands and results at once; 0: half of what is available
};

}  // namespace plumb::harness
