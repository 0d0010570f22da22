// Host memory between inaccessible pages.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

namespace plumb {

class GuardedPages {
 public:
  // So many whole pages that `bytes` fit in, readable and writable. Throws DeviceError when the
  // system has none left.
  explicit GuardedPages(size_t bytes);
  ~GuardedPages();
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  char* begin() const { return begin_; }
  char* end() const { return begin_ + bytes_; }
  // Whether writes are let through; reads are.
  void let_write(bool allowed);
  // Whether an address is in the pages or in the guards around them.
  bool watches(const void* p) const;

  static size_t whole(size_t bytes);  // rounded up to pages, at least one

 private:
  char* begin_ = nullptr;
  size_t bytes_ = 0;
  bool writable_ = true;
};

// Pages that are used again: the operands of one call are as large as those of the next.
class PagePool {
 public:
  std::shared_ptr<GuardedPages> take(size_t bytes);

 private:
  std::list<std::shared_ptr<GuardedPages>> known_;  // the last used ones first
};

}  // namespace plumb
