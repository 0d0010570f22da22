#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <utility>

namespace plumb::cpu {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t count, Call call, const void* context) {
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    context_ = context;
    count_ = count;
    grain_ = std::max<int64_t>(1, count / (8 * size()));
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  start_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  finish_.wait(lock, [this] { return busy_ == 0; });
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
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    work(worker);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) finish_.notify_one();
  }
}

}  // namespace plumb::cpu
