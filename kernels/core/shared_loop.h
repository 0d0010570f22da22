// Loops over many elements, shared by the threads that the calling thread was lent, if any. Which
// thread makes a part must not matter; what is made of parts is put together in their order.
#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/thread_pool.h"

namespace plumb {

// While it lives, shared loops of the thread that made it have the threads of `pool`; null: none.
class LoopThreads {
 public:
  explicit LoopThreads(ThreadPool* pool) : before_(current_) { current_ = pool; }
  ~LoopThreads() { current_ = before_; }
  LoopThreads(const LoopThreads&) = delete;
  LoopThreads& operator=(const LoopThreads&) = delete;

  static ThreadPool* current() { return current_; }

 private:
  static inline thread_local ThreadPool* current_ = nullptr;
  ThreadPool* const before_;
};

// [0, n) as parts that begin at multiples of `step`: one, unless there are threads and `work`
// elements are worth waking them.
struct LoopParts {
  LoopParts(size_t n, size_t step, size_t work) : n(n), length(std::max<size_t>(n, 1)) {
    constexpr size_t kWorthIt = size_t{1} << 20, kPerThread = 4;
    const ThreadPool* pool = LoopThreads::current();
    if (!pool || work < kWorthIt) return;
    const size_t wanted = kPerThread * static_cast<size_t>(pool->size());
    const size_t steps = (n + step - 1) / step;
    length = std::max<size_t>((steps + wanted - 1) / wanted, 1) * step;
  }

  size_t count() const { return (n + length - 1) / length; }
  size_t begin(size_t part) const { return part * length; }
  size_t end(size_t part) const { return std::min(begin(part) + length, n); }

  size_t n, length;
};

// Calls run(begin, end, part) for every part.
template <class Run>
void for_parts(const LoopParts& parts, const Run& run) {
  ThreadPool* pool = LoopThreads::current();
  const auto one = [&](size_t part) { run(parts.begin(part), parts.end(part), part); };
  if (!pool || parts.count() < 2) {
    for (size_t part = 0; part < parts.count(); ++part) one(part);
    return;
  }
  constexpr double kCost = 1e6;     // a part is worth a wake-up
  const LoopThreads none(nullptr);  // a loop inside a part is that part's alone
  pool->for_each(static_cast<int64_t>(parts.count()), kCost,
                 [&](int64_t part, int) { one(static_cast<size_t>(part)); });
}

// run(begin, end) for parts of the elements [0, n).
template <class Run>
void shared_loop(size_t n, const Run& run) {
  for_parts(LoopParts(n, 1, n), [&](size_t begin, size_t end, size_t) { run(begin, end); });
}

// Asks the system for large pages, where it has them: a fault for each small one is a third of what
// a pass over fresh memory costs.
inline void advise_large_pages(void* data, size_t bytes) {
#ifdef __linux__
  constexpr size_t kLargePage = size_t{2} << 20, kSmallPage = 4096;
  if (bytes < 2 * kLargePage) return;
  const auto at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (at + kSmallPage - 1) / kSmallPage * kSmallPage;
  const uintptr_t end = (at + bytes) / kSmallPage * kSmallPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: may be refused
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

// n zeros. The system clears a page when it is first written to: here by all threads, since for a
// gigabyte that takes one of them longer than most loops over it.
template <class T>
std::vector<T> shared_zeros(size_t n) {
  constexpr size_t kPage = 4096 / sizeof(T);
  std::vector<T> out;
  out.reserve(n);
  advise_large_pages(out.data(), n * sizeof(T));
  if (LoopThreads::current()) {
    volatile T* fresh = out.data();
    for_parts(LoopParts(n, kPage, n), [&](size_t begin, size_t end, size_t) {
      for (size_t i = begin; i < end; i += kPage) fresh[i] = T();
    });
  }
  out.resize(n);
  return out;
}

// What make(begin, end) gives for parts of the elements [0, n), in their order.
template <class Make>
auto shared_parts(size_t n, const Make& make) {
  const LoopParts parts(n, 1, n);
  std::vector<decltype(make(size_t{}, size_t{}))> out(parts.count());
  for_parts(parts, [&](size_t begin, size_t end, size_t part) { out[part] = make(begin, end); });
  return out;
}

}  // namespace plumb
