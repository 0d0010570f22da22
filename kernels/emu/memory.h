// The emulated memory: one region of address space; a small part of it is the shared memory of the
// running block, the rest is device memory. Each block of that has pages of its own between guard
// pages: an access outside them raises a signal, even one that the compiler did not instrument. The
// checker knows the exact bytes. Guard zones around the others, and behind each end, have a pattern
// that is verified after each launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/emu/emulator.h"

namespace plumb::emulator {

inline constexpr size_t kRegionBytes = size_t{1} << 36;
inline constexpr size_t kSharedBytes = size_t{1} << 20;  // of the region: objects, zones and slack

// Start of the region. Null until the first call of map_region(): nothing is inside then, whatever
// offset_of() says of addresses below kRegionBytes.
extern constinit char* region;
// Maps the region; throws DeviceError when the system refuses.
void map_region();

// Offset in the region, or something beyond kRegionBytes for any other address.
inline size_t offset_of(const void* p) {
  return static_cast<size_t>(static_cast<const char*>(p) - region);
}

// "4 bytes after the end of 1024 bytes of device memory".
std::string describe_address(const void* p);

// A message about a damaged guard zone of device memory, which is then repaired, or nothing.
std::string find_device_overrun();

// The shared memory of the running block.
class SharedMemory {
 public:
  // Forgets all objects. limit: bytes that all objects together may have; checked: they are
  // recorded.
  void start_block(size_t limit, bool checked);
  // The object of a key; null when there is none yet.
  void* find(const void* key) const;
  // A new one, full of 0xff; null when the limit is exceeded.
  void* add(const void* key, size_t bytes, size_t alignment);
  size_t used() const { return total_; }
  size_t limit() const { return limit_; }
  // A message about a damaged guard zone, or nothing.
  std::string find_overrun() const;
  std::string describe(size_t offset) const;

 private:
  struct Object {
    const void* key;
    char* data;
    size_t bytes;
  };
  std::vector<Object> objects_;
  size_t end_ = 0, total_ = 0, limit_ = 0;
  bool checked_ = false;
};
SharedMemory& shared_memory();

}  // namespace plumb::emulator
