// The functions of emulator.h: one launch at a time, and what its errors say.
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/source_line.h"
#include "kernels/emu/check.h"
#include "kernels/emu/crash.h"
#include "kernels/emu/memory.h"
#include "kernels/emu/scheduler.h"

namespace plumb::emulator {

std::string where(Site site) {
  const std::string file = site.file_name();
  return text(file.substr(file.rfind('/') + 1), ':', site.line());
}

namespace {

// "rms_norm_rows<plumb::BFloat16, 32, 8, 1>" of what the compiler calls kernel_signature<Kernel>().
std::string kernel_of(const char* signature) {
  std::string name = signature;
  const size_t start = name.find("Kernel = ");
  if (start != std::string::npos) name = name.substr(start + 9);
  if (!name.empty() && name.back() == ']') name.pop_back();
  for (const char* prefix :
       {"&", "plumb::emu::", "plumb::emu_check::", "{anonymous}::", "(anonymous namespace)::"}) {
    if (name.rfind(prefix, 0) == 0) name = name.substr(std::string(prefix).size());
  }
  return name;
}

std::mutex pending_mutex;
std::string pending;  // what host_access() could not throw

void throw_pending(const KernelName& name) {
  const std::lock_guard lock(pending_mutex);
  if (pending.empty()) return;
  const std::string message = std::exchange(pending, {});
  throw DeviceError(text('[', name.op, "] before this kernel: ", message));
}

}  // namespace

void host_access(const void* code) {
  const std::lock_guard lock(pending_mutex);
  if (pending.empty()) pending = "code of the host touches device memory at " + source_line(code);
}

Queue* make_queue(int wave, bool checked) {
  uint64_t seed = 0;
  if (const char* value = std::getenv("PLUMB_EMU_SEED"); value && *value) {
    char* end = nullptr;
    errno = 0;
    seed = std::strtoull(value, &end, 10);
    require(*end == 0 && errno == 0 && *value >= '0' && *value <= '9', "emu",
            "PLUMB_EMU_SEED is \"", value,
            "\", expected a number: 0 for ascending order, others for random ones");
  }
  return new Queue{wave, checked, seed};
}

void run(KernelName name, Dim grid, Dim block, size_t shared, const Queue& queue, Body body,
         const void* call) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  require<DeviceError>(!current, name.op, "a kernel is launched from within a kernel");
  require<DeviceError>(threads >= 1 && threads <= kMostThreads, name.op, "kernel ",
                       kernel_of(name.signature), ": ", threads,
                       " threads in a block, expected 1 to ", kMostThreads);
  require<DeviceError>(grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 &&
                           grid.z >= 1 && grid.z <= 65535,
                       name.op, "kernel ", kernel_of(name.signature), ": a grid of ", grid.x, " x ",
                       grid.y, " x ", grid.z,
                       " blocks, expected 1 to 2^31 - 1, 1 to 65535 and 1 to 65535");
  static std::mutex turn;
  const std::lock_guard lock(turn);
  throw_pending(name);
  const CrashGuard guard;
  const std::string error = scheduler().run({name, grid, block, shared, queue, body, call});
  if (error.empty()) return;
  throw DeviceError(text('[', name.op, "] kernel ", kernel_of(name.signature), ": ", error));
}

void submit(KernelName name, Dim grid, Dim block, size_t shared, const Queue& queue, Body body,
            const void* call, size_t bytes) {
  if (!queue.recording) return run(name, grid, block, shared, queue, body, call);
  std::vector<std::max_align_t> copy((bytes + sizeof(std::max_align_t) - 1) /
                                     sizeof(std::max_align_t));
  std::memcpy(copy.data(), call, bytes);
  queue.recording->push_back([=, &queue, copy = std::move(copy)] {
    run(name, grid, block, shared, queue, body, copy.data());
  });
}

void wait(const Queue& queue) {
  if (queue.checked) check::pass_wait(queue);
}

// --- On a fiber.

void require_waited() {
  if (current->has_waited) return;
  fault("a thread ends without wait_for_previous_kernel(): launch_overlapped needs it");
}

void fault(std::string what) {
  if (!current) throw DeviceError("[emu] " + what);
  scheduler().fail(std::move(what));
}

void fault(std::string what, Site site) {
  what += " at " + where(site);
  fault(std::move(what));
}

void misaligned(size_t bytes, Site site) {
  fault(text("vector access of ", bytes, " bytes at an address that is no multiple of it"), site);
}

void block_barrier(Site site) { scheduler().block_barrier(site); }

void see_other_blocks() { check::see_other_blocks(); }

const uint64_t* exchange(uint64_t value, int wave, WaveOperation operation, Site site) {
  return scheduler().exchange(value, wave, operation, site);
}

void no_such_lane(unsigned lane, Site site) {
  fault(text("reads lane ", lane, " of a wave that has ", current->lanes), site);
}

void* shared_object(const void* key, size_t bytes, size_t alignment, Site site) {
  return scheduler().shared_object(key, bytes, alignment, site);
}

void* dynamic_shared(Site site) { return scheduler().dynamic_shared(site); }

}  // namespace plumb::emulator
