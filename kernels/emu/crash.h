// Signals that a kernel raises: a wild address, an overflowing stack, a division by zero.
#pragma once

#include <csignal>

namespace plumb::emulator {

// While it lives, SIGSEGV, SIGBUS and SIGFPE of a running kernel end the launch with a fault that
// names block and thread. Signals that something else raises go to the handlers that were there
// before. Under AddressSanitizer, which explains crashes better, it does nothing.
class CrashGuard {
 public:
  CrashGuard();
  ~CrashGuard();
  CrashGuard(const CrashGuard&) = delete;
  CrashGuard& operator=(const CrashGuard&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
  struct sigaction before_[3];
};

}  // namespace plumb::emulator
