#include "harness/run/task_pool.h"

#include <system_error>

namespace plumb::harness {

TaskPool::TaskPool(int threads) {
  threads_.reserve(static_cast<size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {  // the system has no more of them: these do it, if any
    if (threads_.empty()) throw;
  }
}

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TaskPool::add(int64_t rank, Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace(rank, std::move(task));
  }
  changed_.notify_one();
}

void TaskPool::serve(int thread) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    const Task task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    lock.unlock();
    task(thread);
    lock.lock();
  }
}

}  // namespace plumb::harness
