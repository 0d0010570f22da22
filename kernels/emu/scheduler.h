// Scheduler: runs the threads of one block as fibers, one block after another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/emu/emulator.h"
#include "kernels/emu/fiber.h"
#include "kernels/emu/random_order.h"

namespace plumb::emulator {

inline constexpr unsigned kMostThreads = 1024;  // of a block
inline constexpr unsigned kMostLanes = 64;

// Lanes that exchange values. Slots alternate between exchanges: a fast lane may deposit for the
// next one while a slow lane has yet to read this one's.
struct Wave {
  unsigned first = 0, size = 0;  // threads of the block
  unsigned arrived = 0, turn = 0;
  uint64_t epoch = 0;  // wave barriers passed
  WaveOperation operation{};
  Site site;
  uint64_t slots[2][kMostLanes] = {};
};

inline uint64_t wave_epoch(const Thread& thread) { return thread.wave->epoch; }

std::string where(Site site);  // "sdpa.cu:120"

// Called by the checker when code of the host touches the emulated memory: the next launch or copy
// throws.
void host_access(const void* code);

struct Launch {
  KernelName name;
  Dim grid, block;
  size_t shared;
  const Queue& queue;
  Body body;
  const void* call;
};

class Scheduler {
 public:
  Scheduler();

  // Runs all blocks. Returns what went wrong, or nothing.
  std::string run(const Launch& launch);

  // --- On a fiber.
  void block_barrier(Site site);
  const uint64_t* exchange(uint64_t value, int wave, WaveOperation operation, Site site);
  void* shared_object(const void* key, size_t bytes, size_t alignment, Site site);
  void* dynamic_shared(Site site);
  [[noreturn]] void fail(std::string message);
  // What looks like a fault of the running thread, but may be the first half of another one. It is
  // reported at the next block barrier, at the end of the block, and in place of any other fault.
  void suspect(const std::string& message);
  bool is_suspicious() const { return !suspicion_.empty(); }
  void clear_suspicion() { suspicion_.clear(); }
  // For a signal handler: whether an address is below the running thread's stack.
  bool is_stack_overflow(const void* p) const { return stacks_.is_guard(p); }

 private:
  enum class State : uint8_t { ready, at_barrier, in_wave, done };
  struct alignas(64) GpuThread : Thread {  // a switch touches two cache lines of it
    Fiber fiber;
    State state{};
    Site site;
  };

  static void thread_main();
  void start_fibers();
  void run_block(Dim index);
  void set_up_threads();
  void start_block(Dim index);
  void make_ready(unsigned first, unsigned count, unsigned except);
  void make_all_ready();
  void suspend(GpuThread& thread);
  std::string diagnose() const;
  GpuThread& running() { return static_cast<GpuThread&>(*current); }

  FiberStacks stacks_;
  Fiber host_;
  std::unique_ptr<GpuThread[]> threads_;
  std::vector<Wave> waves_;
  std::vector<uint16_t> ready_;  // last in, first out
  RandomOrder order_;
  const Launch* launch_ = nullptr;
  unsigned total_ = 0, at_barrier_ = 0, done_ = 0;
  Site barrier_site_;
  void* dynamic_ = nullptr;
  size_t static_bytes_ = 0;
  bool failed_ = false;
  std::string message_, suspicion_;
};

// The one of the process. Launches take turns.
Scheduler& scheduler();

}  // namespace plumb::emulator
