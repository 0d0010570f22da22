#include "kernels/emu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "kernels/core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define PLUMB_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLUMB_FIBER_ASAN 1
#endif
#endif
#if defined(PLUMB_FIBER_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves, changes stacks, restores. The entry is where a new
// fiber's first switch returns to: it calls the address in rbx and ends the stack for debuggers.
extern "C" void plumb_fiber_switch(void** save, void* to);
extern "C" void plumb_fiber_entry();
asm(R"(.pushsection .text
.p2align 4
.globl plumb_fiber_switch
.hidden plumb_fiber_switch
.type plumb_fiber_switch,@function
plumb_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size plumb_fiber_switch,.-plumb_fiber_switch
.p2align 4
.globl plumb_fiber_entry
.hidden plumb_fiber_entry
.type plumb_fiber_entry,@function
plumb_fiber_entry:
  .cfi_startproc
  .cfi_undefined rip
  xorl %ebp, %ebp
  callq *%rbx
  ud2
  .cfi_endproc
.size plumb_fiber_entry,.-plumb_fiber_entry
.popsection
)");

namespace plumb::emulator {

void Fiber::adopt_host_stack() {
#if defined(PLUMB_FIBER_ASAN)
  pthread_attr_t attributes;
  void* lowest = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &lowest, &bytes_);
    pthread_attr_destroy(&attributes);
  }
  stack_ = static_cast<char*>(lowest);
#endif
}

void Fiber::start(void (*entry)(), char* stack, size_t bytes) {
#if defined(PLUMB_FIBER_ASAN)
  __asan_unpoison_memory_region(stack, bytes);
#endif
  stack_ = stack;
  bytes_ = bytes;
  fake_stack_ = nullptr;
  // Tops staggered by cache lines, or all stacks would fight over the same cache sets.
  const size_t stagger = reinterpret_cast<uintptr_t>(stack) / 4096 % 32 * 128;
  void** top = reinterpret_cast<void**>(stack + bytes - 64 - stagger);
  *--top = reinterpret_cast<void*>(&plumb_fiber_entry);
  *--top = nullptr;                              // rbp
  *--top = reinterpret_cast<void*>(entry);       // rbx
  for (int i = 0; i < 4; ++i) *--top = nullptr;  // r12 to r15
  stack_pointer_ = top;
}

void Fiber::arrived() {
#if defined(PLUMB_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void Fiber::switch_to(Fiber& next) {
#if defined(PLUMB_FIBER_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, next.stack_, next.bytes_);
#endif
  plumb_fiber_switch(&stack_pointer_, next.stack_pointer_);
#if defined(PLUMB_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::leave_for(Fiber& next) {
#if defined(PLUMB_FIBER_ASAN)
  __sanitizer_start_switch_fiber(nullptr, next.stack_, next.bytes_);
#endif
  plumb_fiber_switch(&stack_pointer_, next.stack_pointer_);
  std::abort();  // a finished fiber is never resumed
}

bool fibers_know_address_sanitizer() {
#if defined(PLUMB_FIBER_ASAN)
  return true;
#else
  return false;
#endif
}

FiberStacks::FiberStacks(size_t count, size_t bytes) : count_(count), pitch_(bytes + kGuard) {
  void* memory = mmap(nullptr, count * pitch_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require<DeviceError>(memory != MAP_FAILED, "emu", "the system refuses ", count * pitch_,
                       " bytes of address space for the stacks of ", count, " emulated threads");
  memory_ = static_cast<char*>(memory);
  for (size_t i = 0; i < count; ++i) mprotect(memory_ + i * pitch_, kGuard, PROT_NONE);
}

FiberStacks::~FiberStacks() { munmap(memory_, count_ * pitch_); }

bool FiberStacks::is_guard(const void* p) const {
  const char* at = static_cast<const char*>(p);
  if (at < memory_ || at >= memory_ + count_ * pitch_) return false;
  return static_cast<size_t>(at - memory_) % pitch_ < kGuard;
}

}  // namespace plumb::emulator
