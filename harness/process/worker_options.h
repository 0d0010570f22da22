// How work is done in a process of its own.
#pragma once

namespace plumb::harness {

struct WorkerOptions {
  bool own_process = true;    // false: here, for debuggers; then a crash is a crash of the program
  double timeout = 600;       // seconds without a result after which a worker is killed; 0: never
  bool keep_outputs = false;  // results come with the outputs' values
};

}  // namespace plumb::harness
