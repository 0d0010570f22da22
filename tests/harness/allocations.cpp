#include "tests/harness/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> now{0};
std::atomic<int64_t> peak{0};

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t total = now.fetch_add(size) + size;
  int64_t seen = peak.load();
  while (total > seen && !peak.compare_exchange_weak(seen, total)) {
  }
  return memory;
}

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return operator new(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) now -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { operator delete(memory); }

namespace plumb::harness {

int64_t allocated_bytes() { return now; }
int64_t peak_bytes() { return peak; }
void reset_peak() { peak = now.load(); }

}  // namespace plumb::harness
