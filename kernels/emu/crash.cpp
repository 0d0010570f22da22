#include "kernels/emu/crash.h"

#include <iterator>
#include <memory>

#include "kernels/emu/fiber.h"
#include "kernels/emu/scheduler.h"
#include "kernels/error.h"

namespace plumb::emulator {
namespace {

// A kernel may have used up its own.
constexpr size_t kHandlerStackBytes = 128 << 10;

// The handlers run on a stack of their own, one per host thread.
struct SignalStack {
  std::unique_ptr<char[]> memory{new char[kHandlerStackBytes]};
  stack_t before{};

  SignalStack() {
    stack_t stack{};
    stack.ss_sp = memory.get();
    stack.ss_size = kHandlerStackBytes;
    sigaltstack(&stack, &before);
  }
  ~SignalStack() { sigaltstack(&before, nullptr); }
};

// Leaves the kernel for good, as fault() does, from within the handler: the signal is not blocked
// meanwhile.
void on_signal(int signal, siginfo_t* info, void*) {
  if (!current) {  // not a kernel's: the default action, when the instruction is repeated
    std::signal(signal, SIG_DFL);
    return;
  }
  if (signal == SIGFPE) fault("integer division by zero");
  if (scheduler().is_stack_overflow(info->si_addr)) {
    fault("the local variables of a thread need more than its stack");
  }
  fault(text("access to address ", info->si_addr, ", which is no memory"));
}

}  // namespace

CrashGuard::CrashGuard() {
  if (fibers_know_address_sanitizer()) return;
  thread_local SignalStack stack;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

CrashGuard::~CrashGuard() {
  if (fibers_know_address_sanitizer()) return;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

}  // namespace plumb::emulator
