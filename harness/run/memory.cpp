#include "harness/run/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace plumb::harness {
namespace {

constexpr int64_t kUnknown = int64_t{4} << 30;  // where the system does not say

// "MemAvailable:  123 kB" of /proc/meminfo, in bytes.
int64_t available() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 2 * kUnknown;
}

// A container may have less than the machine; "max" is no number.
int64_t allowed(const char* path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes ? bytes : INT64_MAX;
}

}  // namespace

int64_t memory_by_default() {
  return std::min({available(), allowed("/sys/fs/cgroup/memory.max"),
                   allowed("/sys/fs/cgroup/memory/memory.limit_in_bytes")}) /
         2;
}

}  // namespace plumb::harness
