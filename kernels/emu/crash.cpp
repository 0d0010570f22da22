#include "kernels/emu/crash.h"

#include <ucontext.h>

#include <iterator>
#include <memory>

#include "kernels/core/error.h"
#include "kernels/core/source_line.h"
#include "kernels/emu/fiber.h"
#include "kernels/emu/memory.h"
#include "kernels/emu/scheduler.h"

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

// The processor does not say which address was misaligned for its instruction, or not canonical.
constexpr int kNoAddress = 0x80;  // si_code: SI_KERNEL

std::string crash_text(int signal, const siginfo_t& info, const mcontext_t& machine) {
  const auto* code =
      reinterpret_cast<const char*>(machine.gregs[REG_RIP]) + 1;  // as a return address
  const std::string line = " at " + source_line(code);
  if (signal == SIGFPE) return "integer division by zero" + line;
  if (info.si_code == kNoAddress) return "access that is misaligned for its width, or wild," + line;
  const char* verb = machine.gregs[REG_ERR] & 2 ? "write" : "read";
  if (region && offset_of(info.si_addr) < kRegionBytes) {
    return text(verb, " out of bounds (", describe_address(info.si_addr), ')', line);
  }
  return text(verb, " of address ", info.si_addr, ", which is no memory,", line);
}

// Leaves the kernel for good, as fault() does, from within the handler: the signal is not blocked
// meanwhile.
void on_signal(int signal, siginfo_t* info, void* context) {
  if (!current) {  // not a kernel's: the default action, when the instruction is repeated
    std::signal(signal, SIG_DFL);
    return;
  }
  if (scheduler().is_stack_overflow(info->si_addr)) {
    fault("the local variables of a thread need more than its stack");
  }
  fault(crash_text(signal, *info, static_cast<const ucontext_t*>(context)->uc_mcontext));
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
