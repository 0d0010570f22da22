// A few persistent threads that share the iterations of a loop. The caller's thread is one of them.
//
// Threads that wait first spin for about as long as a sleeping thread takes to wake up: ops follow
// each other closely, and many take no longer than that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace plumb {

int usable_cores();  // that this process may run on, at least 1

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1; fewer where the system gives no more
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls f(index, worker) once for every index in [0, count), 0 <= worker < size(), in any order.
  // Which thread runs an index must not matter: every index writes its own results. Loops that cost
  // less than a wake-up (`cost` of one index, in units of about a nanosecond) run on the calling
  // thread. When f throws, what is left of the loop is skipped and one of the exceptions thrown
  // again here.
  template <class Function>
  void for_each(int64_t count, double cost, const Function& f) {
    if (threads_.empty() || count <= 1 || static_cast<double>(count) * cost < kWakeUpCost) {
      for (int64_t i = 0; i < count; ++i) f(i, 0);
      return;
    }
    run(
        count,
        [](const void* context, int64_t i, int worker) {
          (*static_cast<const Function*>(context))(i, worker);
        },
        &f);
  }

 private:
  using Call = void (*)(const void* context, int64_t index, int worker);
  static constexpr double kWakeUpCost = 10000;

  void run(int64_t count, Call call, const void* context);
  void work(int worker);
  void serve(int worker);
  // Waits until ready(), spinning at first, then asleep until `changed` is notified.
  template <class Ready>
  void wait(std::condition_variable& changed, const Ready& ready);

  const int spins_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable finish_;
  std::atomic<uint64_t> generation_{0};  // of the current loop
  std::atomic<int> busy_{0};             // workers that have not finished it
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;

  // The current loop; written while no worker is busy.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;  // indices claimed at a time
  std::atomic<int64_t> next_{0};
};

}  // namespace plumb
