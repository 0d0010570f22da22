// Checkpoints side by side: while the device runs one after the other, a pool of threads reads the
// operands of the next ones and judges what the last ones gave.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "harness/replay/checkpoint_run.h"
#include "harness/run/job.h"
#include "harness/run/task_pool.h"
#include "kernels/core/device.h"
#include "kernels/core/thread_pool.h"

namespace plumb::harness {

// After some errors every further call fails, whatever it is.
bool still_works(Device& device);

class Pipeline {
 public:
  // What becomes of a run, as one message. Called by any thread.
  using Finish = std::function<std::string(CheckpointRun& run)>;
  // Progress as it is known, reported by any thread, one at a time.
  struct Listener {
    std::function<void(size_t job)> begins;  // the device is about to run it
    std::function<void(size_t job)> ran;     // and has
    // Jobs end in their order, but for one that cost the device (`lost`): it is the last one
    // reported, and jobs before it may not have been. False: stop.
    std::function<bool(size_t job, const std::string& result, bool lost)> ends;
  };

  // threads: that read and judge; 1: everything is done in order, by the caller's thread. memory:
  // bytes of operands and results that may be there at once, by estimate, and of weights that stay
  // on the device, which have half of it at most; one checkpoint always may be there.
  Pipeline(Device& device, Device& oracle, int threads, int64_t memory, Finish finish);
  ~Pipeline();

  // Jobs first, ..., first + count - 1, none of them a chain. False where no more can be run: the
  // device is lost, or the listener said stop.
  bool run(const std::vector<Job>& jobs, size_t first, size_t count, const Listener& listener);

 private:
  enum class State { preparing, prepared, judging, judged, told };
  struct Slot {
    std::unique_ptr<CheckpointRun> run;  // null once it is judged and needs no explanation
    int64_t bytes = 0;
    State state = State::preparing;
    std::string result;
  };

  void admit(const std::vector<Job>& jobs, size_t end);
  bool await(const std::vector<Job>& jobs, size_t index, size_t end);
  bool execute(const Job& job, size_t index);
  bool run_alone(const Job& job, size_t index);
  void add_weights(const Job& job);
  int64_t bytes_of(const Job& job) const;
  // Null: the calling thread alone.
  std::unique_ptr<ThreadPool> threads_for(int64_t bytes, int64_t room) const;
  void judge(Slot& slot, int thread);
  void set(Slot& slot, State state);
  void begins(size_t job);
  void ran(size_t job);
  void tell();
  bool release(bool device_works);
  bool explain_first();
  void tell_loss(Slot& slot, size_t index);
  bool waits_for_device(const Slot& slot) const { return slot.state == State::judged && slot.run; }
  bool can_go_on() const;

  Device& device_;
  Device& oracle_;
  const int64_t memory_;
  int64_t room_ = 0;               // what weights leave of it
  std::set<std::string> weights_;  // of all runs: SHA-256, dtype, shape
  int64_t bytes_of_weights_ = 0;
  ResidentWeights resident_;
  const Finish finish_;
  std::vector<std::unique_ptr<Device>> oracles_;  // of each thread
  const Listener* listener_ = nullptr;
  std::mutex telling_;  // taken before the other one
  std::mutex mutex_;    // of all below
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Slot>> slots_;  // of jobs first_, first_ + 1, ...
  size_t first_ = 0, told_ = 0;              // told_: the next job to report
  int64_t bytes_ = 0;                        // of the slots
  bool gone_ = false;                        // no listener is left
  std::unique_ptr<TaskPool> pool_;           // last: its threads use the others
};

}  // namespace plumb::harness
