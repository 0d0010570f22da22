// The memory checker of instrumented kernels: exact bounds, reads of uninitialised
// memory, and races.
//
// The kernels are compiled with -fsanitize=thread; the compiler then announces each access to
// memory by a call of __tsan_read4 and the like, which tsan_entry.cpp answers with access() below
// (the compiler's own runtime is not linked). Every byte of the emulated memory has a record of its
// last write and of its reads: which thread, between which two barriers, and where in the code. Two
// accesses of different threads, one of them a write, race unless a block barrier (or, within a
// wave, a wave barrier) or the end of a launch separates them. A read of uninitialised memory
// becomes a fault at the next barrier: until then a write may still turn it into a race.
//
// Before wait_for_previous_kernel() a kernel may write nothing outside its block, and read nothing
// that a launch has written whose queue was not waited for since.
//
// Accesses of two bytes and more look at the records of even bytes only: a race of an access to an
// odd byte with a wider one is not seen, nor that it is read too early, unless the odd byte was
// never written alone. Orders made by fences and flags are unknown and look like
// races.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/emu/emulator.h"

namespace plumb::emulator::check {

// One checked launch at a time (run() sees to it).
void start_launch(const Queue& queue);
// What the queue was given has ended, for all that is launched from here on.
void pass_wait(const Queue& queue);
void start_block();
void pass_block_barrier();
// Until its end, what this block does comes behind all that others did so far.
void see_other_blocks();

// What the records say of bytes of the region.
void mark_fresh(const void* p, size_t bytes);    // allocated, contents undefined
void mark_written(const void* p, size_t bytes);  // by the host
void mark_gone(const void* p, size_t bytes);     // no longer allocated

enum class Access { read, write, atomic };
// One access by the running thread at a code address. Addresses outside the region are ignored.
template <Access Kind>
void access(const void* p, size_t bytes, const void* code);
extern template void access<Access::read>(const void*, size_t, const void*);
extern template void access<Access::write>(const void*, size_t, const void*);
extern template void access<Access::atomic>(const void*, size_t, const void*);

}  // namespace plumb::emulator::check
