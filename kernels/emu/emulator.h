// The emulator: GPU blocks on the CPU. Every thread of a block is a fiber; a barrier opens only
// when every thread of the block has arrived at the same source line, a wave operation only when
// every lane has; anything else is a fault that says who waits where. Order of threads and blocks:
// ascending, or random by seed. Blocks run one after the other, launches too, whatever host thread
// they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace plumb::emulator {

using Site = std::source_location;

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

struct Wave;

// What the accessors of gpu_emu.h read of the running thread.
struct Thread {
  Dim thread, block, block_size, grid_size;
  unsigned linear = 0, lane = 0;  // in the block, in the wave
  unsigned lanes = 0;             // of its wave: fewer in the last one of a block
  Wave* wave = nullptr;
  bool has_waited = false;  // called wait_for_previous_kernel()
};
extern constinit thread_local Thread* current;  // null on the host

using Launches = std::vector<std::function<void()>>;

// One emulated device's queue; work runs at once, unless it is recorded.
struct Queue {
  int wave = 32;
  bool checked = false;  // the kernels are instrumented: see check.h
  uint64_t seed = 0;     // 0: ascending order
  std::unique_ptr<Launches> recording = {};
};
// With the seed of PLUMB_EMU_SEED, or 0. Throws UsageError for a seed that is no number.
Queue* make_queue(int wave, bool checked);

struct KernelName {
  const char* op;         // "rms_norm"
  const char* signature;  // the compiler's, template arguments included
};

using Body = void (*)(const void* call);
// Runs all blocks of a launch; `call` is what `body` is called with by every thread. Throws
// DeviceError naming kernel, file:line, block and thread for a fault.
void run(KernelName name, Dim grid, Dim block, size_t shared, const Queue& queue, Body body,
         const void* call);
// The same at once, or when what the queue records is replayed: with a copy of the call's bytes.
void submit(KernelName name, Dim grid, Dim block, size_t shared, const Queue& queue, Body body,
            const void* call, size_t bytes);

// What was submitted ran when it was; this is for the checker.
void wait(const Queue& queue);

// --- On a fiber.

// A fault unless the thread called wait_for_previous_kernel(): launch_overlapped needs it.
void require_waited();

enum class WaveOperation { barrier, shuffle, shuffle_xor, shuffle_down, ballot };

void block_barrier(Site site);
// What other blocks of the launch did so far is ordered before what this one does from here on.
void see_other_blocks();
// Deposits a value, waits for every lane of the wave, returns the slots of all lanes (0 for lanes
// that the block does not have). wave 0: any width.
const uint64_t* exchange(uint64_t value, int wave, WaveOperation operation, Site site);
[[noreturn]] void no_such_lane(unsigned lane, Site site);
inline void require_lane(unsigned lane, Site site) {
  if (lane >= current->lanes) no_such_lane(lane, site);
}
// The shared object of this block for a key; made when first asked for, full of 0xff.
void* shared_object(const void* key, size_t bytes, size_t alignment, Site site);
void* dynamic_shared(Site site);
// Ends the launch: run() throws. Off a fiber it throws DeviceError itself.
[[noreturn]] void fault(std::string what, Site site);
[[noreturn]] void misaligned(size_t bytes, Site site);  // a vector access of so many bytes
[[noreturn]] void fault(std::string what);              // where it happened is part of the text

// Copies like memcpy; both sides count as accesses of an instrumented kernel.
void checked_copy(void* to, const void* from, size_t bytes);

// --- Device memory: 4096-byte aligned blocks with guard zones around each, filled with 0xff. Freed
// memory is not handed out again until the whole region has been used. Copies that leave a block
// throw DeviceError.

void* memory_allocate(size_t bytes, bool checked);
void memory_free(void* p);
void memory_fill(void* p, uint8_t byte, size_t bytes);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_to_host(void* to, const void* from, size_t bytes);

}  // namespace plumb::emulator
