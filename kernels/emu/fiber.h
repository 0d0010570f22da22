// Fiber: a place to switch to, with a stack of its own. The switch is written for x86-64 (15 ns;
// ucontext's takes 240). AddressSanitizer is notified of every switch.
#pragma once

#include <cstddef>

namespace plumb::emulator {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes this the fiber of the calling host thread, which already runs.
  void adopt_host_stack();
  // The next switch to it calls entry, which must never return, on this stack.
  void start(void (*entry)(), char* stack, size_t bytes);
  // Suspends this fiber, which is running, until another switches back to it.
  void switch_to(Fiber& next);
  // Like switch_to, for a fiber that is never resumed.
  [[noreturn]] void leave_for(Fiber& next);
  // The first thing on a new fiber.
  static void arrived();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

// Whether this is a build with AddressSanitizer.
bool fibers_know_address_sanitizer();

// Stacks of equal size, each with an inaccessible page below it.
class FiberStacks {
 public:
  FiberStacks(size_t count, size_t bytes);  // throws DeviceError when the system refuses
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  char* stack(size_t i) const { return memory_ + i * pitch_ + kGuard; }
  size_t bytes() const { return pitch_ - kGuard; }
  // Whether an address is in a guard page: a stack has overflowed.
  bool is_guard(const void* p) const;

 private:
  static constexpr size_t kGuard = 4096;
  size_t count_, pitch_;
  char* memory_;
};

}  // namespace plumb::emulator
