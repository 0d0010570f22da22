// A device in a process of its own, so that a crash, a hang or an error that stays costs one
// checkpoint and not the run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/process/process.h"
#include "harness/process/worker_options.h"
#include "harness/replay/replay.h"
#include "harness/run/job.h"
#include "kernels/core/device.h"

namespace plumb::harness {

// Every device (cpu and emulated ones too) as this binary lists them, looked for in another process
// since what a driver leaves behind would be of no use in a fork. Throws DeviceError when that
// process crashes, or finds nothing for a minute.
std::vector<DeviceStatus> probe_devices();

// Loads plugins in a child process and declares here what they have: their code runs in workers
// alone. Throws BadInput for one that is no plugin, DeviceError when that process
// crashes, TimedOut when it takes longer than options.timeout or a minute. Without processes of
// their own they are loaded here.
void add_plugins(const std::vector<std::string>& files, const WorkerOptions& options);

class Worker {
 public:
  using Open = std::function<std::unique_ptr<Device>()>;

  // Opens the device; throws what `open` throws, DeviceError where opening it crashes or hangs, and
  // Interrupted.
  // `name` is what it was called on the command line. The caller must have no other threads.
  Worker(std::string name, Open open, std::vector<Job> jobs, WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const std::string& name() const { return name_; }  // the device's own: "cuda:0"
  const std::string& description() const { return description_; }
  // Whether it has an implementation that --impl of the jobs names; where not, it chooses freely.
  bool finds_impl() const { return finds_impl_; }

  // Asks for the results of jobs first, first + 1, ..., first + count - 1, which next() then gives.
  void start(size_t first, size_t count);
  // The next result. A job whose worker
  //   died while its device ran it is a device_error that names the signal or exit code,
  //   gave no result in time is a timeout,
  // and the jobs after it, and those before it that were not judged yet, run in a new worker. So
  // they do after a device_error that stays: one after which the device cannot even synchronise.
  // Ten workers in a row that came to such an end, or a device that cannot be opened again, end it:
  // every further job is a device_error, "not run:
  // ...". Throws Interrupted, after which no more results can be had.
  Replayed next();
  bool gave_up() const { return !given_up_.empty(); }

 private:
  struct Execution;

  void launch();
  void relaunch();
  void serve(const Channel& channel) const;
  void ask();
  Replayed lost(const Job& job, Status status, const std::string& reason) const;
  void count_end(const std::string& how);
  std::optional<Replayed> received(const std::string& message);
  void blame(bool late);

  std::string impl() const { return jobs_.empty() ? "" : jobs_[0].options->impl; }

  std::string name_, description_;
  bool finds_impl_ = true;
  Open open_;
  std::vector<Job> jobs_;
  WorkerOptions options_;
  std::unique_ptr<Execution> here_;  // the device, where it is in this process
  std::unique_ptr<Process> process_;
  size_t at_ = 0, end_ = 0;           // jobs asked for and not given yet
  size_t asked_ = 0;                  // end of those that the process was asked for
  std::optional<size_t> running_;     // what its device is at
  std::map<size_t, Replayed> ahead_;  // of jobs that ended a process before others were judged
  int ends_in_a_row_ = 0;
  std::string given_up_;  // why; "" as long as it works
};

}  // namespace plumb::harness
