#include "kernels/emu/check.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/source_line.h"
#include "kernels/emu/memory.h"
#include "kernels/emu/scheduler.h"

namespace plumb::emulator::check {
namespace {

// What is known of a byte. A stamp is epoch:38 | wave epoch:14 | who:12. Epochs count the stretches
// between block barriers and grow for ever; wave epochs count the wave barriers of one wave. `who`
// is a thread, several lanes of one wave, several threads, or an atomic operation. Write stamps
// below kHost: 0 not allocated, kFresh never written; kHost itself: by the host.
struct Record {
  uint64_t write, read;
  uint32_t write_code, read_code;  // lower halves of return addresses
};
constexpr int kEpochShift = 26, kWaveEpochShift = 12;
constexpr uint64_t kFresh = 1, kHost = uint64_t{1} << kEpochShift;
constexpr uint64_t kWhoMask = 0xfff, kWaveEpochMask = 0x3fff;
constexpr uint64_t kSeveralLanes = 0x400, kSeveral = 0x800, kAtomic = 0x801;  // thread < 0x400

uint64_t who_of(uint64_t stamp) { return stamp & kWhoMask; }
uint64_t wave_epoch_of(uint64_t stamp) { return stamp >> kWaveEpochShift & kWaveEpochMask; }

Record* records = nullptr;  // one per byte of the region
uint64_t epoch = 2;

// First stamps of the launch (or, in a block that sees the others, its own), of the block and of
// the stretch since its last barrier.
struct Clock {
  uint64_t launch = 0, block = 0, now = 0;
  int wave_shift = 5;  // log2 of the wave width
};
Clock clock_now;
uint64_t start_of_launch = 0;

// Successive launches of a queue that the host has not waited for: stamps [begin, end).
struct InFlight {
  uint64_t begin, end;
  const Queue* queue;
};
constexpr uint64_t kRunning = ~uint64_t{0};  // an end
std::vector<InFlight> in_flight;             // oldest first
std::mutex in_flight_mutex;

void note_launch(const Queue& queue) {
  const std::lock_guard lock(in_flight_mutex);
  const bool any_runs = !in_flight.empty() && in_flight.back().end == kRunning;
  if (any_runs && in_flight.back().queue == &queue) return;
  if (any_runs) in_flight.back().end = start_of_launch;
  in_flight.push_back({start_of_launch, kRunning, &queue});
}

bool is_in_flight(uint64_t stamp) {
  const std::lock_guard lock(in_flight_mutex);
  return std::any_of(in_flight.begin(), in_flight.end(), [&](const InFlight& launches) {
    return stamp >= launches.begin && stamp < launches.end;
  });
}

// Whether a stamp is of an earlier stretch of this block.
bool earlier_in_block(uint64_t stamp, const Clock& clock) {
  return stamp - clock.block < clock.now - clock.block;
}

void map_records() {
  map_region();
  static const bool mapped = [] {
    void* p = mmap(nullptr, kRegionBytes * sizeof(Record), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require<DeviceError>(p != MAP_FAILED, "emu-check", "the system refuses ",
                         kRegionBytes * sizeof(Record),
                         " bytes of address space for the records of the checker (see ulimit -v)");
    records = static_cast<Record*>(p);
    return true;
  }();
  static_cast<void>(mapped);
}

void mark(const void* p, size_t bytes, uint64_t write) {
  map_records();
  Record* first = records + offset_of(p);
  for (size_t i = 0; i < bytes; ++i) first[i] = {write, 0, 0, 0};
}

std::string who_text(uint64_t stamp) {
  const uint64_t who = who_of(stamp);
  if (who == kAtomic) return "an atomic operation";
  if (who == kSeveral) return "several threads";
  if (who >= kSeveralLanes) return text("several lanes of wave ", who - kSeveralLanes);
  return text("thread ", who);
}

std::string memory_text(size_t offset, size_t bytes) {
  return text(bytes, bytes == 1 ? " byte, " : " bytes, ", describe_address(region + offset));
}

// The other side of a race.
struct Other {
  const char* verb;
  uint64_t stamp;
  uint32_t code;
};

std::string access_text(const char* verb, const char* problem, size_t offset, size_t bytes,
                        const void* code) {
  return text(verb, problem, " (", memory_text(offset, bytes), ") at ", source_line(code));
}

// The fiber is left for good: nothing that still owns memory may be on its stack.
[[noreturn, gnu::noinline, gnu::cold]] void report_bounds(const char* verb, size_t offset,
                                                          size_t bytes, const void* code) {
  fault(access_text(verb, " out of bounds", offset, bytes, code));
}

// The write may be just late: a missing barrier, which the write itself will report.
[[gnu::noinline, gnu::cold]] void suspect_unwritten(const char* verb, size_t offset, size_t bytes,
                                                    const void* code) {
  if (scheduler().is_suspicious()) return;
  scheduler().suspect(access_text(verb, " of memory that was never written", offset, bytes, code));
}

std::string race_text(const char* verb, size_t offset, size_t bytes, const void* code,
                      const Other& other) {
  const bool same_block = other.stamp >= clock_now.block;
  return text("race: the ", access_text(verb, "", offset, bytes, code), " and the ", other.verb,
              " at ", source_line_of_low_bits(other.code), " by ", who_text(other.stamp),
              same_block ? "" : " of another block", " have no barrier between them");
}

[[noreturn, gnu::noinline, gnu::cold]] void report_race(const char* verb, size_t offset,
                                                        size_t bytes, const void* code,
                                                        const Other& other) {
  scheduler().clear_suspicion();
  fault(race_text(verb, offset, bytes, code, other));
}

// Whether an access of this launch, or an older one, is unordered with one by `me` now.
bool unordered(uint64_t stamp, uint64_t me, const Clock& clock) {
  if (stamp < clock.launch || earlier_in_block(stamp, clock)) return false;
  if (stamp < clock.block) return true;  // another block
  const uint64_t who = who_of(stamp), own = who_of(me), wave = own >> clock.wave_shift;
  if (who == own) return false;
  const bool same_wave = who < kSeveralLanes ? who >> clock.wave_shift == wave
                                             : who < kSeveral && who - kSeveralLanes == wave;
  return !(same_wave && wave_epoch_of(stamp) != wave_epoch_of(me));
}

// The stamp that represents earlier reads and one by `me`.
uint64_t with_read(uint64_t stamp, uint64_t me, const Clock& clock) {
  if (!unordered(stamp, me, clock)) return me;
  if (stamp < clock.block) return (stamp & ~kWhoMask) | kSeveral;
  const uint64_t who = who_of(stamp), wave = who_of(me) >> clock.wave_shift;
  const bool same_wave = who < kSeveralLanes ? who >> clock.wave_shift == wave
                                             : who < kSeveral && who - kSeveralLanes == wave;
  return same_wave ? (me & ~kWhoMask) | kSeveralLanes | wave : clock.now | kSeveral;
}

// Whether a write to an odd byte is in the record of the even byte before it.
bool part_of_wider(const Record& r, size_t offset) {
  return offset % 2 == 1 && r.write == kFresh && (&r)[-1].write > kFresh;
}

// The full rules for one record; the first record of an access to `bytes` bytes is at `offset`.
template <Access Kind>
[[gnu::noinline]] void access_record(Record& r, size_t offset, size_t bytes, uint64_t me,
                                     const void* code) {
  const Clock& clock = clock_now;
  constexpr const char* kVerbs[] = {"read", "write", "atomic operation"};
  const char* verb = kVerbs[static_cast<int>(Kind)];
  if (r.write == 0) report_bounds(verb, offset, bytes, code);
  if (Kind != Access::write && r.write == kFresh) suspect_unwritten(verb, offset, bytes, code);
  const bool both_atomic = Kind == Access::atomic && who_of(r.write) == kAtomic;
  if (r.write != me && !both_atomic && unordered(r.write, me, clock)) {
    report_race(verb, offset, bytes, code, {"write", r.write, r.write_code});
  }
  const auto code_bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(code));
  if (Kind == Access::read) {
    r.read = with_read(r.read, me, clock);
    r.read_code = code_bits;
    return;
  }
  if (r.read != me && unordered(r.read, me, clock)) {
    report_race(verb, offset, bytes, code, {"read", r.read, r.read_code});
  }
  r.write = Kind == Access::atomic ? (me & ~kWhoMask) | kAtomic : me;
  r.write_code = code_bits;
}

constexpr const char* kAhead = " ahead of wait_for_previous_kernel()";

std::string early_read_text(size_t offset, size_t bytes, const void* code, uint32_t write_code) {
  return access_text("read", kAhead, offset, bytes, code) + ", of what a launch before writes at " +
         source_line_of_low_bits(write_code);
}

// Of an access before wait_for_previous_kernel().
template <Access Kind>
[[gnu::noinline]] void check_ahead(size_t offset, size_t bytes, const void* code) {
  if (offset < kSharedBytes) return;
  if (Kind != Access::read) fault(access_text("write", kAhead, offset, bytes, code));
  for (size_t i = 0; i < bytes; ++i) {
    const Record& own = records[offset + i];
    const Record& r = bytes == 1 && part_of_wider(own, offset) ? (&own)[-1] : own;
    if (r.write >= clock_now.launch || !is_in_flight(r.write)) continue;
    fault(early_read_text(offset, bytes, code, r.write_code));
  }
}

}  // namespace

void start_launch(const Queue& queue) {
  map_records();
  start_of_launch = ++epoch << kEpochShift;
  note_launch(queue);
  clock_now.wave_shift = queue.wave == 64 ? 6 : 5;
}

void pass_wait(const Queue& queue) {
  const std::lock_guard lock(in_flight_mutex);
  std::erase_if(in_flight, [&](const InFlight& launches) { return launches.queue == &queue; });
}

void start_block() {
  clock_now.launch = start_of_launch;
  clock_now.block = clock_now.now = ++epoch << kEpochShift;
}

void see_other_blocks() { clock_now.launch = clock_now.block; }

void pass_block_barrier() { clock_now.now = ++epoch << kEpochShift; }

void mark_fresh(const void* p, size_t bytes) { mark(p, bytes, kFresh); }

void mark_written(const void* p, size_t bytes) { mark(p, bytes, kHost); }

void mark_gone(const void* p, size_t bytes) {
  map_records();
  constexpr uintptr_t kPage = 4096;
  char* first = reinterpret_cast<char*>(records + offset_of(p));
  char* last = first + bytes * sizeof(Record);
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(first) + kPage - 1) / kPage * kPage;
  const uintptr_t end = reinterpret_cast<uintptr_t>(last) / kPage * kPage;
  if (begin >= end || offset_of(p) < kSharedBytes) {
    std::memset(first, 0, static_cast<size_t>(last - first));
    return;
  }
  // Whole pages go back to the system and read as zero.
  std::memset(first, 0, begin - reinterpret_cast<uintptr_t>(first));
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(end), 0, reinterpret_cast<uintptr_t>(last) - end);
}

template <Access Kind>
void access(const void* p, size_t bytes, const void* code) {
  const size_t offset = offset_of(p);
  if (offset >= kRegionBytes) return;
  const Thread* thread = current;
  if (!thread || !records) {
    if (region) host_access(code);  // else addresses of a program that is not relocated look inside
    return;
  }
  if (!thread->has_waited) check_ahead<Kind>(offset, bytes, code);
  const Clock& clock = clock_now;
  const uint64_t me =
      clock.now | (wave_epoch(*thread) & kWaveEpochMask) << kWaveEpochShift | thread->linear;
  Record* r = records + offset;
  if (bytes > 1 && r[bytes - 1].write == 0) {
    access_record<Kind>(r[bytes - 1], offset, bytes, me, code);
  }
  const size_t step = bytes > 1 && offset % 2 == 0 ? 2 : 1;
  for (size_t i = 0; i < bytes; i += step) {
    const uint64_t write = r[i].write, read = r[i].read;
    const bool write_settled =
        write == me || write - kHost < clock.launch - kHost || earlier_in_block(write, clock);
    const bool read_settled = read == me || read < clock.launch || earlier_in_block(read, clock);
    // The two common cases at once; access_record() has all of them.
    if (Kind == Access::read && write_settled) {
      if (read == me || read == (clock.now | kSeveral)) continue;
      if (read_settled) {
        r[i].read = me;
        r[i].read_code = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(code));
        continue;
      }
    }
    if (Kind == Access::write && read_settled && (write_settled || write == kFresh)) {
      r[i].write = me;
      r[i].write_code = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(code));
      continue;
    }
    if (bytes == 1 && part_of_wider(r[i], offset)) continue;
    access_record<Kind>(r[i], offset, bytes, me, code);
  }
}

template void access<Access::read>(const void*, size_t, const void*);
template void access<Access::write>(const void*, size_t, const void*);
template void access<Access::atomic>(const void*, size_t, const void*);

}  // namespace plumb::emulator::check
