#include "kernels/emu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/core/error.h"
#include "kernels/emu/check.h"

namespace plumb::emulator {

constinit char* region = nullptr;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGap =
    4 * kPage;                // in front of each block, of no use: a row beyond an end is there
constexpr size_t kZone = 64;  // bytes with the pattern on each side of a block
constexpr uint8_t kPattern = 0xa7;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Where accesses are checked, no byte but the block's and the rest of its last page can be touched.
struct Block {
  size_t bytes;
  bool checked;

  // One at least: no address is of two blocks.
  size_t pages() const { return whole_pages(std::max<size_t>(checked ? bytes : bytes + kZone, 1)); }
  size_t zone_before() const { return checked ? 0 : kZone; }
  size_t zone_after() const { return std::min(kZone, pages() - bytes); }
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

constexpr Block zoned(size_t bytes) { return {bytes, false}; }

void fill_zones(char* data, const Block& block) {
  std::memset(data - block.zone_before(), kPattern, block.zone_before());
  std::memset(data + block.bytes, kPattern, block.zone_after());
}

// Offset from data of the first damaged byte of a block's zones, or 0.
ptrdiff_t damage(const char* data, const Block& block) {
  const auto differs = [](char c) { return static_cast<uint8_t>(c) != kPattern; };
  const char* before = std::find_if(data - block.zone_before(), data, differs);
  if (before != data) return before - data;
  const char *end = data + block.bytes, *last = end + block.zone_after();
  const char* after = std::find_if(end, last, differs);
  return after != last ? after - data : 0;
}

// Lets a block's pages be used, or ends that.
bool protect(char* data, const Block& block, int protection) {
  const size_t before = whole_pages(block.zone_before());
  if (before + block.pages() == 0) return true;
  return mprotect(data - before, before + block.pages(), protection) == 0;
}

std::string place(ptrdiff_t from_start, size_t bytes, const char* kind) {
  if (from_start < 0) return text(-from_start, " bytes before ", bytes, " bytes of ", kind);
  const auto at = static_cast<size_t>(from_start);
  if (at < bytes) return text("byte ", at, " of ", bytes, " bytes of ", kind);
  return text(at - bytes, " bytes after the end of ", bytes, " bytes of ", kind);
}

// The next free address for a block: each address is used once before any is used again.
char* find_room(Heap& h, const Block& block) {
  const size_t needed = block.pages() + kGap;
  char* const last = region + kRegionBytes;
  for (int round = 0; round < 2; ++round) {
    char* at = h.next;
    while (at + needed <= last) {
      const auto after = h.live.lower_bound(at);
      char* busy_until = nullptr;
      if (after != h.live.end() && after->first < at + needed) {
        busy_until = after->first + after->second.pages();
      } else if (after != h.live.begin()) {
        const auto before = std::prev(after);
        char* end = before->first + before->second.pages();
        if (end > at) busy_until = end;
      }
      if (!busy_until) return at + kGap;
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
  require<DeviceError>(inside, what, bytes, " bytes are not inside one block of device memory");
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
    void* p =
        mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const bool usable = p != MAP_FAILED && mprotect(p, kSharedBytes, PROT_READ | PROT_WRITE) == 0;
    require<DeviceError>(usable, "emu", "the system refuses ", kRegionBytes,
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
  const Block block{bytes, checked};
  char* data =
      bytes <= physical && h.live_bytes + bytes <= physical ? find_room(h, block) : nullptr;
  if (!data || !protect(data, block, PROT_READ | PROT_WRITE)) {
    throw DeviceError(text("[emu] out of emulated memory: ", bytes, " bytes asked for, ",
                           h.live_bytes, " in use, ", physical, " in this machine"));
  }
  h.next = data + block.pages();
  h.freed.erase(h.freed.lower_bound(data), h.freed.lower_bound(h.next));
  h.live[data] = block;
  h.live_bytes += bytes;
  std::memset(data, 0xff, bytes);
  fill_zones(data, block);
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
  protect(static_cast<char*>(p), block, PROT_NONE);
  madvise(p, block.pages(), MADV_DONTNEED);
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
    const ptrdiff_t at = damage(data, block);
    if (at == 0) continue;
    fill_zones(data, block);
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
  const bool any_after = after != h.live.end(), any_before = after != h.live.begin();
  const auto before = any_before ? std::prev(after) : after;
  const auto behind = [&] {  // its end, negative when inside
    return at - (before->first + static_cast<ptrdiff_t>(before->second.bytes));
  };
  if (any_before && (!any_after || behind() <= after->first - at)) return near(before);
  return any_after ? near(after) : "device memory, where nothing is allocated";
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
  fill_zones(data, zoned(bytes));
  if (checked_) check::mark_fresh(data, bytes);
  objects_.push_back({key, data, bytes});
  return data;
}

std::string SharedMemory::find_overrun() const {
  for (const Object& object : objects_) {
    const ptrdiff_t at = damage(object.data, zoned(object.bytes));
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
