#include "kernels/emu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/emu/check.h"
#include "kernels/error.h"

namespace plumb::emulator {

constinit char* region = nullptr;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kZone = 64;  // bytes with the pattern on each side of a block
constexpr uint8_t kPattern = 0xa7;

struct Block {
  size_t bytes;
  bool checked;
};

struct Heap {
  std::mutex mutex;
  std::map<char*, Block> live;
  std::map<char*, size_t> freed;  // and not handed out again
  char* next = nullptr;
  size_t live_bytes = 0;
};
Heap& heap() {
  static Heap* h = new Heap;  // outlives every device
  return *h;
}

size_t pages_of(size_t bytes) { return (bytes + kZone + kPage - 1) / kPage * kPage; }

void fill_zones(char* data, size_t bytes) {
  std::memset(data - kZone, kPattern, kZone);
  std::memset(data + bytes, kPattern, kZone);
}

// Offset from data of the first damaged byte of a block's zones, or 0.
ptrdiff_t damage(const char* data, size_t bytes) {
  const auto differs = [](char c) { return static_cast<uint8_t>(c) != kPattern; };
  const char* before = std::find_if(data - kZone, data, differs);
  if (before != data) return before - data;
  const char* after = std::find_if(data + bytes, data + bytes + kZone, differs);
  return after != data + bytes + kZone ? after - data : 0;
}

std::string place(ptrdiff_t from_start, size_t bytes, const char* kind) {
  if (from_start < 0) return text(-from_start, " bytes before ", bytes, " bytes of ", kind);
  const auto at = static_cast<size_t>(from_start);
  if (at < bytes) return text("byte ", at, " of ", bytes, " bytes of ", kind);
  return text(at - bytes, " bytes after the end of ", bytes, " bytes of ", kind);
}

// The next free address for a block: each address is used once before any is used again.
char* find_room(Heap& h, size_t bytes) {
  const size_t needed = pages_of(bytes) + kPage;
  char* const last = region + kRegionBytes;
  for (int round = 0; round < 2; ++round) {
    char* at = h.next;
    while (at + needed <= last) {
      const auto after = h.live.lower_bound(at);
      char* busy_until = nullptr;
      if (after != h.live.end() && after->first < at + needed) {
        busy_until = after->first + pages_of(after->second.bytes);
      } else if (after != h.live.begin()) {
        const auto before = std::prev(after);
        char* end = before->first + pages_of(before->second.bytes);
        if (end > at) busy_until = end;
      }
      if (!busy_until) return at + kPage;
      at = busy_until;
    }
    h.next = region + kSharedBytes;
  }
  return nullptr;
}

void require_inside(const void* p, size_t bytes, const char* what) {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const char* at = static_cast<const char*>(p);
  auto found = h.live.upper_bound(const_cast<char*>(at));
  const bool inside = found != h.live.begin() &&
                      (--found, at <= found->first + found->second.bytes) &&
                      bytes <= static_cast<size_t>(found->first + found->second.bytes - at);
  require<DeviceError>(inside, what, bytes, " bytes do not lie inside one block of device memory");
}

bool is_checked(const void* p) {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const auto found = h.live.upper_bound(static_cast<char*>(const_cast<void*>(p)));
  return found != h.live.begin() && std::prev(found)->second.checked;
}

}  // namespace

void map_region() {
  static const bool mapped = [] {
    void* p = mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require<DeviceError>(p != MAP_FAILED, "emu", "the system refuses ", kRegionBytes,
                         " bytes of address space for the emulated memory (see ulimit -v)");
    region = static_cast<char*>(p);
    heap().next = region + kSharedBytes;
    return true;
  }();
  static_cast<void>(mapped);
}

void* memory_allocate(size_t bytes, bool checked) {
  map_region();
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const auto physical = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
  char* data =
      bytes <= physical && h.live_bytes + bytes <= physical ? find_room(h, bytes) : nullptr;
  if (!data) {
    throw DeviceError(text("[emu] out of emulated memory: ", bytes, " bytes asked for, ",
                           h.live_bytes, " in use, ", physical, " in this machine"));
  }
  h.next = data + pages_of(bytes);
  h.freed.erase(h.freed.lower_bound(data), h.freed.lower_bound(h.next));
  h.live[data] = {bytes, checked};
  h.live_bytes += bytes;
  std::memset(data, 0xff, bytes);
  fill_zones(data, bytes);
  if (checked) check::mark_fresh(data, bytes);
  return data;
}

void memory_free(void* p) {
  if (!p) return;
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const auto found = h.live.find(static_cast<char*>(p));
  if (found == h.live.end()) return;  // a device that ends has no one to report to
  const Block block = found->second;
  h.live.erase(found);
  h.live_bytes -= block.bytes;
  h.freed[static_cast<char*>(p)] = block.bytes;
  if (block.checked) check::mark_gone(p, block.bytes);
  madvise(p, pages_of(block.bytes), MADV_DONTNEED);
}

void memory_fill(void* p, uint8_t byte, size_t bytes) {
  require_inside(p, bytes, "emu: fill");
  std::memset(p, byte, bytes);
  if (is_checked(p)) check::mark_written(p, bytes);
}

void copy_to_device(void* to, const void* from, size_t bytes) {
  require_inside(to, bytes, "emu: copy to the device");
  std::memcpy(to, from, bytes);
  if (is_checked(to)) check::mark_written(to, bytes);
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  require_inside(from, bytes, "emu: copy to the host");
  std::memcpy(to, from, bytes);
}

std::string find_device_overrun() {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  for (const auto& [data, block] : h.live) {
    const ptrdiff_t at = damage(data, block.bytes);
    if (at == 0) continue;
    fill_zones(data, block.bytes);
    return "a write outside device memory, " + place(at, block.bytes, "device memory");
  }
  return "";
}

std::string describe_address(const void* p) {
  const size_t offset = offset_of(p);
  if (offset < kSharedBytes) return shared_memory().describe(offset);
  if (offset >= kRegionBytes) return text("address ", p, ", which is no memory of the device");
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  char* at = static_cast<char*>(const_cast<void*>(p));
  const auto gone = h.freed.upper_bound(at);
  if (gone != h.freed.begin()) {
    const auto& [data, bytes] = *std::prev(gone);
    if (at < data + bytes) return place(at - data, bytes, "device memory that was freed");
  }
  const auto after = h.live.upper_bound(at);
  const auto near = [&](auto found) {
    return place(at - found->first, found->second.bytes, "device memory");
  };
  if (after != h.live.end() &&
      (after == h.live.begin() || after->first - at <= ptrdiff_t{kPage} / 2)) {
    return near(after);
  }
  return after == h.live.begin() ? "device memory, where nothing is allocated"
                                 : near(std::prev(after));
}

SharedMemory& shared_memory() {
  static SharedMemory memory;
  return memory;
}

void SharedMemory::start_block(size_t limit, bool checked) {
  if (checked_) {
    for (const Object& object : objects_) check::mark_gone(object.data, object.bytes);
  }
  objects_.clear();
  end_ = total_ = 0;
  limit_ = limit;
  checked_ = checked;
}

void* SharedMemory::find(const void* key) const {
  for (const Object& object : objects_) {
    if (object.key == key) return object.data;
  }
  return nullptr;
}

void* SharedMemory::add(const void* key, size_t bytes, size_t alignment) {
  if (bytes > limit_ || total_ + bytes > limit_) return nullptr;
  const size_t aligned = std::max<size_t>(alignment, 16);
  const size_t at = (end_ + 2 * kZone + aligned - 1) / aligned * aligned;
  if (at + bytes + kZone > kSharedBytes) return nullptr;
  char* data = region + at;
  end_ = at + bytes;
  total_ += bytes;
  std::memset(data, 0xff, bytes);
  fill_zones(data, bytes);
  if (checked_) check::mark_fresh(data, bytes);
  objects_.push_back({key, data, bytes});
  return data;
}

std::string SharedMemory::find_overrun() const {
  for (const Object& object : objects_) {
    const ptrdiff_t at = damage(object.data, object.bytes);
    if (at != 0)
      return "a write outside shared memory, " + place(at, object.bytes, "shared memory");
  }
  return "";
}

std::string SharedMemory::describe(size_t offset) const {
  const char* at = region + offset;
  for (const Object& object : objects_) {
    if (at >= object.data - kZone && at < object.data + object.bytes + kZone) {
      return place(at - object.data, object.bytes, "shared memory");
    }
  }
  return "shared memory, where nothing is allocated";
}

}  // namespace plumb::emulator
