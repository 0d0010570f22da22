// A command's whole work in a process of its own: a device or a plugin's kernel that crashes, exits
// or hangs there ends in one clear error.
#pragma once

#include <functional>
#include <string>

#include "harness/process/worker_options.h"

namespace plumb::harness {

// Says what is done next, "linear.q_proj on cuda:0"; the time limit starts again.
using Step = std::function<void(const std::string& what)>;

inline constexpr const char* kOutputLost = "cannot be written to its end; is the disk full?";

// Runs `work`, which returns an exit code, and returns or throws what it does. The caller must have
// no other threads. Throws DeviceError, "[bench] rms_norm on cpu: the worker process was killed by
// signal 11 (Segmentation fault)", TimedOut where a step takes longer than options.timeout, and
// Interrupted; UsageError where stdout did not take all of a good run's words. Without a process of
// its own the work is done in this one, without a timeout.
int run_isolated(const std::string& command, const WorkerOptions& options,
                 const std::function<int(const Step&)>& work);

}  // namespace plumb::harness
