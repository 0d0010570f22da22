// Threads that take tasks in an order of urgency.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace plumb::harness {

class TaskPool {
 public:
  using Task = std::function<void(int thread)>;  // which of the threads does it; must not throw

  explicit TaskPool(int threads);  // fewer where the system gives no more, but one
  ~TaskPool();                     // waits for the tasks that have begun and drops the others
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  // Lower ranks are done first, equal ones in the order they came.
  void add(int64_t rank, Task task);

 private:
  void serve(int thread);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<int64_t, Task> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace plumb::harness
