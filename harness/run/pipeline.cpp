#include "harness/run/pipeline.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/core/shared_loop.h"

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
      memory_(memory),
      resident_(device, memory / 2),
      finish_(std::move(finish)) {
  if (threads < 2) return;
  for (int i = 0; i < threads; ++i) oracles_.push_back(open_referee(device, threads));
}

Pipeline::~Pipeline() { pool_.reset(); }

bool Pipeline::run(const std::vector<Job>& jobs, size_t first, size_t count,
                   const Listener& listener) {
  const size_t end = first + count;
  for (size_t index = first; index < end; ++index) add_weights(jobs[index]);
  const int64_t weights = std::min(memory_ / 2, bytes_of_weights_);
  resident_.keep_at_most(weights);
  room_ = memory_ - weights;
  const bool side_by_side = count > 1 && !oracles_.empty();
  if (side_by_side && !pool_) pool_ = std::make_unique<TaskPool>(static_cast<int>(oracles_.size()));
  first_ = told_ = first;
  listener_ = &listener;
  for (size_t index = first; index < end; ++index) {
    const bool goes_on = side_by_side ? await(jobs, index, end) && execute(jobs[index], index)
                                      : run_alone(jobs[index], index);
    if (!goes_on) return false;
  }
  while (!slots_.empty()) {
    if (!release(true)) return false;
  }
  return true;
}

// Those of all runs so far: a later one may use them again. Weights whose dtype is not the run's
// may have either on the device, so they count as the wider one.
void Pipeline::add_weights(const Job& job) {
  const DType dtype = dtype_of_run(*job.recording, device_.name(), *job.options);
  for (const auto& [name, key] : job.checkpoint->weights) {
    const TensorInfo& weight = job.recording->tensor_info(key);
    if (!weights_.insert(text(weight.sha256, ' ', name_of(dtype), ' ', weight.shape)).second) {
      continue;
    }
    bytes_of_weights_ += weight.shape.numel() * std::max(size_of(dtype), size_of(weight.dtype));
  }
}

int64_t Pipeline::bytes_of(const Job& job) const {
  const DType dtype = dtype_of_run(*job.recording, device_.name(), *job.options);
  return bytes_in_flight(*job.recording, *job.checkpoint, dtype, job.options->referee);
}

bool Pipeline::run_alone(const Job& job, size_t index) {
  // As if others had the other half, so that small ones start no threads.
  const std::unique_ptr<ThreadPool> threads = threads_for(bytes_of(job), memory_ / 2);
  const LoopThreads lent(threads.get());
  CheckpointRun run(*job.recording, *job.checkpoint, device_.name(), *job.options);
  force_impl(device_, *job.options);
  run.prepare();
  listener_->begins(index);
  run.execute(device_, &resident_);
  const bool lost = run.result().status == Status::device_error && !still_works(device_);
  run.judge(oracle_);
  run.explain(device_, oracle_);
  return listener_->ends(index, finish_(run), lost) && !lost;
}

// Begins to read the operands of as many further jobs as there is room for.
void Pipeline::admit(const std::vector<Job>& jobs, size_t end) {
  const size_t most = kAheadPerThread * oracles_.size();
  while (slots_.size() < most && first_ + slots_.size() < end) {
    const Job& job = jobs[first_ + slots_.size()];
    const int64_t bytes = bytes_of(job);
    if (!slots_.empty() && bytes_ + bytes > room_) return;
    auto slot = std::make_unique<Slot>();
    slot->run = std::make_unique<CheckpointRun>(*job.recording, *job.checkpoint, device_.name(),
                                                *job.options);
    slot->bytes = bytes;
    pool_->add(kPrepare, [this, slot = slot.get()](int) {
      slot->run->prepare();
      set(*slot, State::prepared);
    });
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
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

// What takes a share of the room keeps others out of it: it has that share of the threads.
std::unique_ptr<ThreadPool> Pipeline::threads_for(int64_t bytes, int64_t room) const {
  const double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(room, 1));
  const auto most = static_cast<double>(oracles_.size());
  const auto threads = static_cast<int>(std::min(share, 1.0) * most);
  return threads > 1 ? std::make_unique<ThreadPool>(threads) : nullptr;
}

void Pipeline::judge(Slot& slot, int thread) {
  const std::unique_ptr<ThreadPool> threads = threads_for(slot.bytes, room_);
  const LoopThreads lent(threads.get());
  slot.run->judge(*oracles_[static_cast<size_t>(thread)]);
  if (!slot.run->wants_explanation()) {
    slot.result = finish_(*slot.run);
    slot.run.reset();
  }
  set(slot, State::judged);
  tell();
}

void Pipeline::begins(size_t job) {
  const std::lock_guard telling(telling_);
  listener_->begins(job);
}

void Pipeline::ran(size_t job) {
  const std::lock_guard telling(telling_);
  listener_->ran(job);
}

// Of the jobs that are judged, as far as those before them are: while the device is at work, too,
// which may be forever.
void Pipeline::tell() {
  const std::lock_guard telling(telling_);
  for (;;) {
    Slot* slot = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (gone_ || told_ - first_ >= slots_.size()) return;
      slot = slots_[told_ - first_].get();
      if (slot->state != State::judged || slot->run) return;
    }
    const bool heard = listener_->ends(told_, slot->result, false);
    {
      const std::lock_guard lock(mutex_);
      gone_ = !heard;
      slot->state = State::told;
      ++told_;
    }
    changed_.notify_one();
  }
}

// Whether the first job leaves, or needs the device to do so. Needs the lock.
bool Pipeline::can_go_on() const {
  if (gone_ || slots_.empty()) return true;
  return slots_.front()->state == State::told || waits_for_device(*slots_.front());
}

// Waits until the first job leaves, and with it those behind it that can.
bool Pipeline::release(bool device_works) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return can_go_on(); });
  while (!gone_ && !slots_.empty() && slots_.front()->state == State::told) {
    bytes_ -= slots_.front()->bytes;
    slots_.pop_front();
    ++first_;
  }
  if (gone_) return false;
  if (slots_.empty() || !waits_for_device(*slots_.front())) return true;
  lock.unlock();
  return device_works && explain_first();
}

bool Pipeline::explain_first() {
  Slot& slot = *slots_.front();
  begins(first_);
  slot.run->explain(device_, oracle_);
  ran(first_);
  slot.result = finish_(*slot.run);
  {
    const std::lock_guard lock(mutex_);
    slot.run.reset();
  }
  tell();
  return true;
}

// Until the device may run the job. What ends meanwhile makes room.
bool Pipeline::await(const std::vector<Job>& jobs, size_t index, size_t end) {
  for (;;) {
    admit(jobs, end);
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      return index < first_ + slots_.size() && slots_[index - first_]->state == State::prepared;
    };
    changed_.wait(lock, [&] { return ready() || can_go_on(); });
    const bool is_ready = ready(), leaves = can_go_on();
    lock.unlock();
    if (leaves && !release(true)) return false;
    if (is_ready) return true;
  }
}

bool Pipeline::execute(const Job& job, size_t index) {
  Slot& slot = *slots_[index - first_];
  force_impl(device_, *job.options);
  begins(index);
  slot.run->execute(device_, &resident_);
  const bool lost = slot.run->result().status == Status::device_error && !still_works(device_);
  if (lost) return tell_loss(slot, index), false;
  ran(index);
  set(slot, State::judging);
  pool_->add(kJudge, [this, &slot](int thread) { judge(slot, thread); });
  return true;
}

// Jobs that need the device for an explanation are not reported.
void Pipeline::tell_loss(Slot& slot, size_t index) {
  while (first_ < index && release(false)) {
  }
  const std::lock_guard telling(telling_);
  listener_->ends(index, finish_(*slot.run), true);
}

}  // namespace plumb::harness
