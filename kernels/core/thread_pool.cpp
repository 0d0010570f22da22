#include "kernels/core/thread_pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <system_error>
#include <utility>

namespace plumb {
namespace {

constexpr int kSpins = 2000;  // some 50 us

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

int usable_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned cores = std::thread::hardware_concurrency();
  return cores ? static_cast<int>(cores) : 1;
}

// Threads without a core of their own must not take one away from those that work.
ThreadPool::ThreadPool(int threads) : spins_(threads <= usable_cores() ? kSpins : 0) {
  threads_.reserve(static_cast<size_t>(std::max(threads - 1, 0)));
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {
    // The system has no more of them: the loops run on those that are there.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

template <class Ready>
void ThreadPool::wait(std::condition_variable& changed, const Ready& ready) {
  for (int i = 0; i < spins_; ++i, relax()) {
    if (ready()) return;
  }
  std::unique_lock lock(mutex_);
  changed.wait(lock, ready);
}

void ThreadPool::run(int64_t count, Call call, const void* context) {
  call_ = call;
  context_ = context;
  count_ = count;
  grain_ = std::max<int64_t>(1, count / (8 * size()));
  next_ = 0;
  busy_ = static_cast<int>(threads_.size());
  {
    const std::lock_guard lock(mutex_);  // no thread is between its check and its wait
    ++generation_;
  }
  start_.notify_all();
  work(0);
  wait(finish_, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    const int64_t end = std::min(count_, begin + grain_);
    try {
      for (int64_t i = begin; i < end; ++i) call_(context_, i, worker);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
  }
}

void ThreadPool::serve(int worker) {
  for (uint64_t seen = 0;; ++seen) {
    wait(start_, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    work(worker);
    if (--busy_ > 0) continue;
    { const std::lock_guard lock(mutex_); }  // as above
    finish_.notify_one();
  }
}

}  // namespace plumb
