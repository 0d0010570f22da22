// What was made, undone in the opposite order: of a constructor that throws, too, if it is the last
// member.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace plumb::vulkan {

class Cleanups {
 public:
  Cleanups() = default;
  Cleanups(const Cleanups&) = delete;
  Cleanups& operator=(const Cleanups&) = delete;
  ~Cleanups() {
    while (!steps_.empty()) {
      steps_.back()();
      steps_.pop_back();
    }
  }
  void add(std::function<void()> step) { steps_.push_back(std::move(step)); }

 private:
  std::vector<std::function<void()>> steps_;
};

}  // namespace plumb::vulkan
