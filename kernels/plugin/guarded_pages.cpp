#include "kernels/plugin/guarded_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb {
namespace {

// On each side: address space alone, where rows beyond an end are, too.
constexpr size_t kGuard = size_t{1} << 20;
constexpr size_t kMostIdle = size_t{256} << 20;  // unused bytes that are kept

size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

size_t GuardedPages::whole(size_t bytes) {
  return std::max(page(), (bytes + page() - 1) / page() * page());
}

GuardedPages::GuardedPages(size_t bytes) : bytes_(whole(bytes)) {
  void* p = mmap(nullptr, bytes_ + 2 * kGuard, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require<DeviceError>(p != MAP_FAILED, "guarded pages", "the system refuses ", bytes_, " bytes");
  begin_ = static_cast<char*>(p) + kGuard;
  if (mprotect(begin_, bytes_, PROT_READ | PROT_WRITE) == 0) return;
  munmap(p, bytes_ + 2 * kGuard);
  throw DeviceError(text("[guarded pages] the system refuses ", bytes_, " bytes"));
}

GuardedPages::~GuardedPages() { munmap(begin_ - kGuard, bytes_ + 2 * kGuard); }

void GuardedPages::let_write(bool allowed) {
  if (allowed == writable_) return;
  const int failed = mprotect(begin_, bytes_, allowed ? PROT_READ | PROT_WRITE : PROT_READ);
  require<DeviceError>(!failed, "guarded pages", "the system cannot protect ", bytes_, " bytes");
  writable_ = allowed;
}

bool GuardedPages::watches(const void* p) const {
  const char* at = static_cast<const char*>(p);
  return at >= begin_ - kGuard && at < end() + kGuard;
}

std::shared_ptr<GuardedPages> PagePool::take(size_t bytes) {
  const auto wanted = static_cast<ptrdiff_t>(GuardedPages::whole(bytes));
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const auto& pages) {
    return pages.use_count() == 1 && pages->end() - pages->begin() == wanted;
  });
  if (found != known_.end()) {
    known_.splice(known_.begin(), known_, found);
    return known_.front();
  }
  // Not all that once were large operands.
  size_t idle = 0;
  std::erase_if(known_, [&](const auto& pages) {
    if (pages.use_count() == 1) idle += static_cast<size_t>(pages->end() - pages->begin());
    return pages.use_count() == 1 && idle > kMostIdle;
  });
  known_.push_front(std::make_shared<GuardedPages>(bytes));
  return known_.front();
}

}  // namespace plumb
