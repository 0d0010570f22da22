#include "harness/run/pipeline.h"

#include <algorithm>

#include "kernels/error.h"

namespace plumb::harness {
namespace {

// Far enough ahead that no thread waits, where checkpoints take unequal times.
constexpr size_t kAheadPerThread = 8;

// Reading waits for judging: what is judged gives its memory back.
constexpr int64_t kJudge = 0, kPrepare = 1;

}  // namespace

bool still_works(Device& device) {
  try {
    device.synchronize();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

Pipeline::Pipeline(Device& device, Device& oracle, int threads, int64_t memory, Finish finish)
    : device_(device),
      oracle_(oracle),
      memory_(memory / 2),
      resident_(device, memory / 2),
      finish_(std::move(finish)) {
  if (threads < 2) return;
  for (int i = 0; i < threads; ++i) oracles_.push_back(open_device("oracle", threads));
}

Pipeline::~Pipeline() { pool_.reset(); }

bool Pipeline::run(const std::vector<Job>& jobs, size_t first, size_t count,
                   const Listener& listener) {
  const size_t end = first + count;
  const bool side_by_side = count > 1 && !oracles_.empty();
  if (side_by_side && !pool_) pool_ = std::make_unique<TaskPool>(static_cast<int>(oracles_.size()));
  told_ = first;
  for (size_t index = first; index < end; ++index) {
    const bool goes_on =
        side_by_side ? await(jobs, index, end, listener) && execute(jobs[index], index, listener)
                     : run_alone(jobs[index], index, listener);
    if (!goes_on) return false;
  }
  while (!slots_.empty()) {
    wait_for_first();
    if (!tell_finished(listener, true)) return false;
  }
  return true;
}

bool Pipeline::run_alone(const Job& job, size_t index, const Listener& listener) {
  CheckpointRun run(*job.recording, *job.checkpoint, device_.name(), *job.options);
  force_impl(device_, *job.options);
  run.prepare();
  listener.begins(index);
  run.execute(device_, &resident_);
  const bool lost = run.result().status == Status::device_error && !still_works(device_);
  run.judge(oracle_);
  run.explain(device_, oracle_);
  return listener.ends(index, finish_(run), lost) && !lost;
}

// Begins to read the operands of as many further jobs as there is room for.
void Pipeline::admit(const std::vector<Job>& jobs, size_t end) {
  const size_t most = kAheadPerThread * oracles_.size();
  while (slots_.size() < most && told_ + slots_.size() < end) {
    const Job& job = jobs[told_ + slots_.size()];
    const int64_t bytes = bytes_in_flight(
        *job.recording, *job.checkpoint, dtype_of_run(*job.recording, device_.name(), *job.options),
        job.options->referee);
    if (!slots_.empty() && bytes_ + bytes > memory_) return;
    auto slot = std::make_unique<Slot>();
    slot->run = std::make_unique<CheckpointRun>(*job.recording, *job.checkpoint, device_.name(),
                                                *job.options);
    slot->bytes = bytes;
    bytes_ += bytes;
    pool_->add(kPrepare, [this, slot = slot.get()](int) {
      slot->run->prepare();
      set(*slot, State::prepared);
    });
    slots_.push_back(std::move(slot));
  }
}

void Pipeline::set(Slot& slot, State state) {
  {
    const std::lock_guard lock(mutex_);
    slot.state = state;
  }
  changed_.notify_one();
}

void Pipeline::judge(Slot& slot, int thread) {
  slot.run->judge(*oracles_[static_cast<size_t>(thread)]);
  if (!slot.run->wants_explanation()) {
    slot.result = finish_(*slot.run);
    slot.run.reset();
  }
  set(slot, State::judged);
}

// Whether the device may run the job; until then what has ended is told, which makes room.
bool Pipeline::await(const std::vector<Job>& jobs, size_t index, size_t end,
                     const Listener& listener) {
  for (;;) {
    admit(jobs, end);
    const bool admitted = index < told_ + slots_.size();
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return admitted && slots_[index - told_]->state == State::prepared; };
    changed_.wait(lock, [&] { return ready() || is_finished(); });
    const bool is_ready = ready();
    lock.unlock();
    if (!tell_finished(listener, true)) return false;
    if (is_ready) return true;
  }
}

bool Pipeline::execute(const Job& job, size_t index, const Listener& listener) {
  Slot& slot = *slots_[index - told_];
  force_impl(device_, *job.options);
  listener.begins(index);
  slot.run->execute(device_, &resident_);
  const bool lost = slot.run->result().status == Status::device_error && !still_works(device_);
  if (lost) return tell_loss(slot, index, listener), false;
  set(slot, State::judging);
  pool_->add(kJudge, [this, &slot](int thread) { judge(slot, thread); });
  return true;
}

void Pipeline::tell_loss(Slot& slot, size_t index, const Listener& listener) {
  for (size_t before = told_ + 1; told_ < index && before != told_;) {
    before = told_;
    wait_for_first();
    if (!tell_finished(listener, false)) return;
  }
  listener.ends(index, finish_(*slot.run), true);
}

void Pipeline::wait_for_first() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_finished(); });
}

// The jobs at the front that are judged. One that the device has to explain stays where that no
// longer works.
bool Pipeline::tell_finished(const Listener& listener, bool device_works) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_finished()) return true;
    }
    Slot& slot = *slots_.front();
    if (slot.run && !device_works) return true;
    if (slot.run) {
      slot.run->explain(device_, oracle_);
      slot.result = finish_(*slot.run);
    }
    if (!listener.ends(told_, slot.result, false)) return false;
    bytes_ -= slot.bytes;
    slots_.pop_front();
    ++told_;
  }
}

}  // namespace plumb::harness
