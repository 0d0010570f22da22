// What a compiler calls from code built with -fsanitize=thread and -fsanitize=bounds, answered by
// check.h. The names and signatures are those of LLVM's compiler-rt, which GCC shares.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/core/source_line.h"
#include "kernels/emu/check.h"
#include "kernels/emu/emulator.h"

using plumb::emulator::check::Access;
using plumb::emulator::check::access;

// The compilers fix these names, one per size: macros keep the list readable.
#define PLUMB_ACCESS(name, size, kind) \
  void name(void* p) { access<Access::kind>(p, size, __builtin_return_address(0)); }
#define PLUMB_ACCESSES(size)                              \
  PLUMB_ACCESS(__tsan_read##size, size, read)             \
  PLUMB_ACCESS(__tsan_write##size, size, write)           \
  PLUMB_ACCESS(__tsan_unaligned_read##size, size, read)   \
  PLUMB_ACCESS(__tsan_unaligned_write##size, size, write) \
  PLUMB_ACCESS(__tsan_volatile_read##size, size, read)    \
  PLUMB_ACCESS(__tsan_volatile_write##size, size, write)

// Since version 16 Clang calls these in place of the C library's; GCC does not.
#define PLUMB_COPY(name)                                            \
  void* __tsan_##name(void* to, const void* from, size_t bytes) {   \
    access<Access::read>(from, bytes, __builtin_return_address(0)); \
    access<Access::write>(to, bytes, __builtin_return_address(0));  \
    return std::name(to, from, bytes);                              \
  }

// Atomic operations, of kernels and of the host's code in the same files (shared_ptr).
#define PLUMB_ATOMIC(type, name, parameters, result, operation)                                    \
  result __tsan_atomic##name parameters {                                                          \
    access<Access::atomic>(const_cast<const type*>(p), sizeof(type), __builtin_return_address(0)); \
    return operation;                                                                              \
  }
#define PLUMB_ATOMIC_UPDATE(bits, type, name)                               \
  PLUMB_ATOMIC(type, bits##_##name, (volatile type * p, type v, int), type, \
               __atomic_##name(p, v, __ATOMIC_SEQ_CST))
#define PLUMB_ATOMIC_COMPARE(bits, type, name, weak)                                    \
  PLUMB_ATOMIC(                                                                         \
      type, bits##_##name, (volatile type * p, type * expected, type v, int, int), int, \
      __atomic_compare_exchange_n(p, expected, v, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define PLUMB_ATOMICS(bits, type)                                             \
  PLUMB_ATOMIC(type, bits##_load, (const volatile type* p, int), type,        \
               __atomic_load_n(p, __ATOMIC_SEQ_CST))                          \
  PLUMB_ATOMIC(type, bits##_store, (volatile type * p, type v, int), void,    \
               __atomic_store_n(p, v, __ATOMIC_SEQ_CST))                      \
  PLUMB_ATOMIC(type, bits##_exchange, (volatile type * p, type v, int), type, \
               __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST))                   \
  PLUMB_ATOMIC_UPDATE(bits, type, fetch_add)                                  \
  PLUMB_ATOMIC_UPDATE(bits, type, fetch_sub)                                  \
  PLUMB_ATOMIC_UPDATE(bits, type, fetch_and)                                  \
  PLUMB_ATOMIC_UPDATE(bits, type, fetch_or)                                   \
  PLUMB_ATOMIC_UPDATE(bits, type, fetch_xor)                                  \
  PLUMB_ATOMIC_COMPARE(bits, type, compare_exchange_strong, false)            \
  PLUMB_ATOMIC_COMPARE(bits, type, compare_exchange_weak, true)

extern "C" {

PLUMB_ACCESSES(1)
PLUMB_ACCESSES(2)
PLUMB_ACCESSES(4)
PLUMB_ACCESSES(8)
PLUMB_ACCESSES(16)

void __tsan_read_range(void* p, size_t bytes) {
  access<Access::read>(p, bytes, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t bytes) {
  access<Access::write>(p, bytes, __builtin_return_address(0));
}
PLUMB_COPY(memcpy)
PLUMB_COPY(memmove)
void* __tsan_memset(void* to, int value, size_t bytes) {
  access<Access::write>(to, bytes, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

PLUMB_ATOMICS(8, uint8_t)
PLUMB_ATOMICS(16, uint16_t)
PLUMB_ATOMICS(32, uint32_t)
PLUMB_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// compiler-rt's OutOfBoundsData begins with the source position.
struct PlumbOutOfBounds {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_out_of_bounds(const PlumbOutOfBounds* where, uintptr_t index) {
  const char* slash = std::strrchr(where->file, '/');
  plumb::emulator::fault(plumb::text("index ", static_cast<intptr_t>(index),
                                     " is outside its array at ", slash ? slash + 1 : where->file,
                                     ":", where->line));
}

}  // extern "C"

namespace plumb::emulator {

// The return address is the kernel's line only while nothing else inlines this.
[[gnu::noinline]] void checked_copy(void* to, const void* from, size_t bytes) {
  access<Access::read>(from, bytes, __builtin_return_address(0));
  access<Access::write>(to, bytes, __builtin_return_address(0));
  __builtin_memcpy(to, from, bytes);
}

}  // namespace plumb::emulator
