// Disks that fill up: the kernel's file size limit makes a write short and the next one fail.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <string>

#include "tests/harness/error_text.h"

namespace plumb::harness {

// No file can grow beyond `bytes` while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit old_{};
};

// What the UsageError says that `write` throws under the limit.
template <class Write>
std::string error_under_limit(rlim_t bytes, Write write) {
  const FileSizeLimit limit(bytes);
  return error_text<UsageError>(write);
}

}  // namespace plumb::harness
