#include "kernels/emu/scheduler.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/emu/check.h"
#include "kernels/emu/memory.h"

namespace plumb::emulator {

constinit thread_local Thread* current = nullptr;

namespace {

constexpr size_t kStackBytes = 128 << 10;
// What a block has at most: CDNA's LDS, and what one block may have on an H100 (dynamic above 48
// KiB).
constexpr size_t kSharedOfWave64 = 64 << 10, kSharedOfWave32 = 227 << 10,
                 kStaticOfWave32 = 48 << 10;

const char* name_of(WaveOperation operation) {
  switch (operation) {
    case WaveOperation::barrier: return "warp_barrier";
    case WaveOperation::shuffle: return "shuffle";
    case WaveOperation::shuffle_xor: return "shuffle_xor";
    case WaveOperation::shuffle_down: return "shuffle_down";
    case WaveOperation::ballot: return "ballot";
  }
  return "wave operation";
}

// Every lane asks this at every shuffle: the names of one file are nearly always one string.
bool same_place(Site a, Site b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string describe(const Thread& t) {
  return text("block (", t.block.x, ",", t.block.y, ",", t.block.z, ") thread (", t.thread.x, ",",
              t.thread.y, ",", t.thread.z, ") lane ", t.lane);
}

// Faults of exchange(), apart from it: what texts are built in would be in the stack frame of every
// waiting lane, whose cache lines are most of what a switch costs.
[[noreturn, gnu::noinline, gnu::cold]] void other_width(WaveOperation operation, int width,
                                                        int device, Site site) {
  fault(text(name_of(operation), " of width ", width, " on a device of wave width ", device), site);
}

[[noreturn, gnu::noinline, gnu::cold]] void diverged(WaveOperation operation, const Wave& wave,
                                                     Site site) {
  fault(text("divergent ", name_of(operation), ": another lane of the wave is in ",
             name_of(wave.operation), " at ", where(wave.site)),
        site);
}

}  // namespace

Scheduler& scheduler() {
  static Scheduler* s = new Scheduler;  // kernels may run until the end of the process
  return *s;
}

Scheduler::Scheduler()
    : stacks_(kMostThreads, kStackBytes),
      threads_(new GpuThread[kMostThreads]),
      waves_(kMostThreads) {
  ready_.reserve(kMostThreads);
  start_fibers();
}

void Scheduler::start_fibers() {
  for (unsigned i = 0; i < kMostThreads; ++i) {
    threads_[i].fiber.start(&Scheduler::thread_main, stacks_.stack(i), stacks_.bytes());
  }
}

// A fiber is reused by one block after another.
void Scheduler::thread_main() {
  Fiber::arrived();
  for (;;) {
    Scheduler& s = scheduler();
    std::string error;
    try {
      s.launch_->body(s.launch_->call);
    } catch (const std::exception& e) {
      error = text("exception thrown in a kernel: ", e.what());
    } catch (...) {
      error = "exception thrown in a kernel";
    }
    if (!error.empty()) fault(std::move(error));
    GpuThread& me = s.running();
    me.state = State::done;
    ++s.done_;
    s.suspend(me);
  }
}

// Leaves the running thread, which has recorded why it waits, for the next one that can run.
void Scheduler::suspend(GpuThread& me) {
  if (ready_.empty()) {
    current = nullptr;
    me.fiber.switch_to(host_);
    return;
  }
  GpuThread& next = threads_[ready_.back()];
  ready_.pop_back();
  if (&next == &me) return;  // the last at a barrier may be the first to continue
  current = &next;
  me.fiber.switch_to(next.fiber);
}

void Scheduler::make_ready(unsigned first, unsigned count, unsigned except) {
  order_.each(count, [&](uint64_t i) {
    const unsigned t = first + count - 1 - static_cast<unsigned>(i);  // the last one in runs first
    if (t == except) return;
    threads_[t].state = State::ready;
    ready_.push_back(static_cast<uint16_t>(t));
  });
}

void Scheduler::make_all_ready() {
  const auto wave = static_cast<unsigned>(launch_->queue.wave);
  const unsigned count = (total_ + wave - 1) / wave;
  order_.each(count, [&](uint64_t i) {
    const Wave& w = waves_[count - 1 - i];
    make_ready(w.first, w.size, kMostThreads);
  });
}

// What is the same in all blocks of a launch.
void Scheduler::set_up_threads() {
  const Dim size = launch_->block;
  const auto wave = static_cast<unsigned>(launch_->queue.wave);
  for (unsigned t = 0; t < total_; ++t) {
    static_cast<Thread&>(threads_[t]) = {{t % size.x, t / size.x % size.y, t / size.x / size.y},
                                         {},
                                         size,
                                         launch_->grid,
                                         t,
                                         t % wave,
                                         std::min(wave, total_ - t / wave * wave),
                                         &waves_[t / wave],
                                         false};
  }
  for (unsigned i = 0; i * wave < total_; ++i) {
    waves_[i] = Wave{};
    waves_[i].first = i * wave;
    waves_[i].size = total_ - i * wave < wave ? total_ - i * wave : wave;
  }
}

void Scheduler::start_block(Dim index) {
  const auto wave = static_cast<unsigned>(launch_->queue.wave);
  for (unsigned t = 0; t < total_; ++t) {
    threads_[t].block = index;
    threads_[t].has_waited = false;
  }
  for (unsigned i = 0; i * wave < total_; ++i) {
    waves_[i].arrived = waves_[i].turn = 0;
    waves_[i].epoch = 0;
  }
  at_barrier_ = done_ = 0;
  ready_.clear();
}

void Scheduler::run_block(Dim index) {
  start_block(index);
  const bool wide = launch_->queue.wave == 64;
  shared_memory().start_block(wide ? kSharedOfWave64 : kSharedOfWave32, launch_->queue.checked);
  if (launch_->queue.checked) check::start_block();
  dynamic_ = nullptr;
  static_bytes_ = 0;
  if (launch_->shared) {
    dynamic_ = shared_memory().add(this, launch_->shared, 16);
    if (!dynamic_) {
      message_ = text(launch_->shared, " bytes of dynamic shared memory, a block may have ",
                      shared_memory().limit(), " at wave width ", launch_->queue.wave);
      return;
    }
  }
  make_all_ready();
  GpuThread& first = threads_[ready_.back()];
  ready_.pop_back();
  current = &first;
  host_.switch_to(first.fiber);
  current = nullptr;
  if (failed_) return;
  if (done_ != total_) {
    failed_ = true;
    message_ = diagnose();
  }
  if (is_suspicious()) message_ = suspicion_;
  if (message_.empty()) {
    message_ = shared_memory().find_overrun();
    if (!message_.empty())
      message_ += text(", by block (", index.x, ",", index.y, ",", index.z, ")");
  }
}

std::string Scheduler::run(const Launch& launch) {
  launch_ = &launch;
  total_ = launch.block.x * launch.block.y * launch.block.z;
  order_ = RandomOrder(launch.queue.seed);
  message_.clear();
  suspicion_.clear();
  host_.adopt_host_stack();
  map_region();
  if (launch.queue.checked) check::start_launch(launch.queue);
  set_up_threads();
  const Dim grid = launch.grid;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  RandomOrder block_order(launch.queue.seed);
  block_order.each(blocks, [&](uint64_t i) {
    if (!message_.empty()) return;
    const uint64_t rest = i / grid.x;
    run_block({static_cast<unsigned>(i % grid.x), static_cast<unsigned>(rest % grid.y),
               static_cast<unsigned>(rest / grid.y)});
  });
  if (failed_) {  // fibers have been abandoned in the middle of the kernel
    failed_ = false;
    start_fibers();
  }
  if (message_.empty()) message_ = find_device_overrun();
  launch_ = nullptr;
  return std::exchange(message_, {});
}

std::string Scheduler::diagnose() const {
  std::map<std::string, std::pair<unsigned, unsigned>> groups;  // what: count, first
  for (unsigned t = 0; t < total_; ++t) {
    const GpuThread& thread = threads_[t];
    std::string what = "have exited";
    if (thread.state == State::at_barrier) what = "wait at block_barrier " + where(thread.site);
    if (thread.state == State::in_wave) {
      what = text("wait in ", name_of(thread.wave->operation), ' ', where(thread.site));
    }
    ++groups.try_emplace(std::move(what), 0u, t).first->second.first;
  }
  const Dim block = threads_[0].block;
  std::string out =
      text("divergence: no thread of block (", block.x, ",", block.y, ",", block.z, ") can run:");
  const char* separator = " ";
  for (const auto& [what, group] : groups) {
    out += text(separator, group.first, " threads (first: ", group.second, ") ", what);
    separator = "; ";
  }
  return out;
}

void Scheduler::fail(std::string message) {
  GpuThread& me = running();
  failed_ = true;
  message_ = is_suspicious() ? suspicion_ : text(message, ", ", describe(me));
  message.clear();
  message.shrink_to_fit();
  current = nullptr;
  me.fiber.leave_for(host_);
}

void Scheduler::suspect(const std::string& message) {
  suspicion_ = text(message, ", ", describe(*current));
}

void Scheduler::block_barrier(Site site) {
  GpuThread& me = running();
  me.site = site;
  if (at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (!same_place(barrier_site_, site)) {
    fault("divergent block_barrier: another thread waits at " + where(barrier_site_), site);
  }
  me.state = State::at_barrier;
  if (++at_barrier_ == total_) {
    if (is_suspicious()) fail({});
    at_barrier_ = 0;
    if (launch_->queue.checked) check::pass_block_barrier();
    make_all_ready();
  }
  suspend(me);
}

const uint64_t* Scheduler::exchange(uint64_t value, int width, WaveOperation operation, Site site) {
  GpuThread& me = running();
  Wave& wave = *me.wave;
  if (width && width != launch_->queue.wave) {
    other_width(operation, width, launch_->queue.wave, site);
  }
  const unsigned turn = wave.turn;
  wave.slots[turn][me.lane] = value;
  if (wave.arrived == 0) {
    wave.operation = operation;
    wave.site = site;
  } else if (wave.operation != operation || !same_place(wave.site, site)) {
    diverged(operation, wave, site);
  }
  me.site = site;
  me.state = State::in_wave;
  if (++wave.arrived < wave.size) {
    suspend(me);
    return wave.slots[turn];
  }
  wave.arrived = 0;
  wave.turn ^= 1;
  if (operation == WaveOperation::barrier) ++wave.epoch;
  me.state = State::ready;
  make_ready(wave.first, wave.size, me.linear);
  return wave.slots[turn];
}

void* Scheduler::shared_object(const void* key, size_t bytes, size_t alignment, Site site) {
  SharedMemory& memory = shared_memory();
  if (void* found = memory.find(key)) return found;
  static_bytes_ += bytes;
  if (launch_->queue.wave == 32 && static_bytes_ > kStaticOfWave32) {
    fault(text(static_bytes_, " bytes of static shared memory, a block may have ", kStaticOfWave32,
               " at wave width 32; more must be dynamic"),
          site);
  }
  if (void* made = memory.add(key, bytes, alignment)) return made;
  fault(text(memory.used() + bytes, " bytes of shared memory, a block may have ", memory.limit(),
             " at wave width ", launch_->queue.wave),
        site);
}

void* Scheduler::dynamic_shared(Site site) {
  if (!dynamic_) fault("dynamic shared memory was not asked for at launch", site);
  return dynamic_;
}

}  // namespace plumb::emulator
