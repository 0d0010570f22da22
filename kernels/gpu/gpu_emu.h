// gpu.h for a host compiler: the kernels as C++, every GPU thread a fiber, every wave, block,
// barrier and shared array real. kernels/emu is the runtime behind it. With PLUMB_EMU_CHECK the
// kernels are compiled with -fsanitize=thread, whose calls the memory checker answers
// (kernels/emu/check.h).
//
// __shared__, threadIdx, __syncthreads and the rest of the vendors' words stay undefined on
// purpose: a kernel that uses them does not compile here.
#pragma once

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <source_location>
#include <string>
#include <type_traits>

#include "kernels/core/error.h"
#include "kernels/emu/emulator.h"

#if defined(PLUMB_EMU_CHECK)
#define PLUMB_GPU_VENDOR emu_check
#define PLUMB_GPU_CHECKED true
#else
#define PLUMB_GPU_VENDOR emu
#define PLUMB_GPU_CHECKED false
#endif
#define PLUMB_SITE_PARAMETER , ::plumb::emulator::Site site = ::plumb::emulator::Site::current()
#define PLUMB_SITE_ARGUMENT , site
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

namespace plumb::PLUMB_GPU_VENDOR {

using emulator::Dim;
using emulator::Site;
using Stream = emulator::Queue*;

inline Dim thread_index() { return emulator::current->thread; }
inline Dim block_index() { return emulator::current->block; }
inline Dim block_size() { return emulator::current->block_size; }
inline Dim grid_size() { return emulator::current->grid_size; }
inline void block_barrier(Site site = Site::current()) { emulator::block_barrier(site); }
inline void warp_barrier(Site site = Site::current()) {
  emulator::exchange(0, 0, emulator::WaveOperation::barrier, site);
}
inline void wait_for_previous_kernel() { emulator::current->has_waited = true; }
inline void prefetch(const void*) {}

namespace detail {

template <class T>
uint64_t to_slot(T v) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t slot = 0;
  std::memcpy(&slot, &v, sizeof v);
  return slot;
}
template <class T>
T from_slot(uint64_t slot) {
  T v;
  std::memcpy(&v, &slot, sizeof v);
  return v;
}

inline constexpr bool kChecked = PLUMB_GPU_CHECKED;

// Inlined, so that the checker sees the kernel's line as the caller.
template <size_t Bytes, bool Whole>
[[gnu::always_inline]] inline void copy_aligned(void* to, const void* from, Site site) {
  const auto bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (bits % Bytes != 0) emulator::misaligned(Bytes, site);
  if constexpr (kChecked) {
    emulator::checked_copy(to, from, Bytes);  // memcpy could escape the compiler's instrumentation
  } else {
    std::memcpy(to, from, Bytes);
  }
}

template <class T, class Tag>
inline constexpr char shared_key = 0;

template <auto Kernel>
constexpr const char* kernel_signature() {
  return __PRETTY_FUNCTION__;
}

}  // namespace detail

template <int Wave, class T>
T shuffle(T v, int lane, Site site = Site::current()) {
  const uint64_t* slots =
      emulator::exchange(detail::to_slot(v), Wave, emulator::WaveOperation::shuffle, site);
  emulator::require_lane(static_cast<unsigned>(lane), site);
  return detail::from_slot<T>(slots[lane]);
}
template <int Wave, class T>
T shuffle_xor(T v, int mask, Site site = Site::current()) {
  const uint64_t* slots =
      emulator::exchange(detail::to_slot(v), Wave, emulator::WaveOperation::shuffle_xor, site);
  const unsigned lane = emulator::current->lane ^ static_cast<unsigned>(mask);
  emulator::require_lane(lane, site);
  return detail::from_slot<T>(slots[lane]);
}
template <int Wave, class T>
T shuffle_down(T v, int n, Site site = Site::current()) {
  const uint64_t* slots =
      emulator::exchange(detail::to_slot(v), Wave, emulator::WaveOperation::shuffle_down, site);
  const unsigned own = emulator::current->lane, lane = own + static_cast<unsigned>(n);
  emulator::require_lane(lane < Wave ? lane : own, site);
  return detail::from_slot<T>(slots[lane < Wave ? lane : own]);
}
template <int Wave>
uint64_t ballot(bool b, Site site = Site::current()) {
  const uint64_t* slots = emulator::exchange(b, Wave, emulator::WaveOperation::ballot, site);
  uint64_t out = 0;
  for (int i = 0; i < Wave; ++i) out |= (slots[i] & 1) << i;
  return out;
}

template <class T, class Tag = void>
T& block_shared(Site site = Site::current()) {
  static_assert(std::is_trivially_default_constructible_v<T>);
  return *static_cast<T*>(
      emulator::shared_object(&detail::shared_key<T, Tag>, sizeof(T), alignof(T), site));
}
template <class T>
T* dynamic_shared(Site site = Site::current()) {
  return static_cast<T*>(emulator::dynamic_shared(site));
}

inline int atomic_add(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline unsigned atomic_add(unsigned* p, unsigned v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
inline float atomic_add(float* p, float v) {
  auto* bits = reinterpret_cast<uint32_t*>(p);
  uint32_t seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(bits, &seen,
                                      std::bit_cast<uint32_t>(std::bit_cast<float>(seen) + v),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<float>(seen);
}

struct LastToPass {
  bool is;
};
inline bool last_to_pass(unsigned* ticket, unsigned blocks, Site site = Site::current()) {
  auto& last = block_shared<LastToPass>(site);
  block_barrier(site);
  if (emulator::current->linear == 0) {
    last.is = atomic_add(ticket, 1u) + 1 == blocks;
    if (last.is) __atomic_store_n(ticket, 0u, __ATOMIC_RELAXED);
  }
  block_barrier(site);
  if (last.is) emulator::see_other_blocks();
  return last.is;
}

inline float reciprocal_sqrt(float x) { return 1.0f / std::sqrt(x); }
inline float approximate_reciprocal_sqrt(float x) { return 1.0f / std::sqrt(x); }
// The product is exact in float64, as in a fused operation; not all hosts have one.
inline float fused_multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * b + c);
}
inline float approximate_exp(float x) { return std::exp(x); }
inline float approximate_exp2(float x) { return std::exp2(x); }
inline float approximate_quotient(float a, float b) { return a / b; }

namespace detail {
// At once, or when what is being recorded is replayed.
template <class Work>
void queue(Stream stream, const Work& work) {
  if (stream->recording) {
    stream->recording->push_back(work);
  } else {
    work();
  }
}

// Everything that needs no type of the kernel is in emulator::submit(): there are hundreds of them.
template <auto Kernel, class Call>
void launch(const char* name, Dim grid, Dim block, size_t shared, Stream stream, const Call& call) {
  static_assert(std::is_trivially_copyable_v<Call>, "a kernel's arguments are copied as bytes");
  emulator::submit(
      {name, kernel_signature<Kernel>()}, grid, block, shared, *stream,
      [](const void* c) { (*static_cast<const Call*>(c))(); }, &call, sizeof call);
}
}  // namespace detail

template <auto Kernel, class... Arguments>
void launch(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
            Arguments... arguments) {
  detail::launch<Kernel>(name, grid, block, shared, stream, [=] {
    wait_for_previous_kernel();
    Kernel(arguments...);
  });
}

template <auto Kernel, class... Arguments>
void launch_overlapped(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
                       Arguments... arguments) {
  detail::launch<Kernel>(name, grid, block, shared, stream, [=] {
    Kernel(arguments...);
    emulator::require_waited();
  });
}

template <class F>
void with_wave(Stream stream, F f) {
  if (stream->wave == 64) {
    f.template operator()<64>();
  } else {
    f.template operator()<32>();
  }
}

// --- Host side. The "ordinal" of an emulated device is its wave width.

inline constexpr bool kExactMemory = true;  // bounds end at the last byte, freed memory stays freed
inline constexpr bool kChecksBounds = detail::kChecked;

inline void* memory_allocate(size_t bytes) {
  return emulator::memory_allocate(bytes, detail::kChecked);
}
inline void memory_free(void* p) { emulator::memory_free(p); }
inline void* host_allocate(size_t bytes) { return ::operator new(bytes); }
inline void host_free(void* p) { ::operator delete(p); }
inline void memory_fill(void* p, uint8_t byte, size_t bytes, Stream stream) {
  detail::queue(stream, [=] { emulator::memory_fill(p, byte, bytes); });
}
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream stream) {
  emulator::copy_to_device(to, from, bytes);
  emulator::wait(*stream);
}
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream stream) {
  emulator::copy_to_host(to, from, bytes);
  emulator::wait(*stream);
}
inline thread_local int emulated_wave = 32;
inline void use_device(int wave) { emulated_wave = wave; }
inline Stream make_stream() { return emulator::make_queue(emulated_wave, detail::kChecked); }
inline void wait_for(Stream stream) { emulator::wait(*stream); }
inline void end_stream(Stream stream) {
  wait_for(stream);
  delete stream;
}
using GraphHandle = emulator::Launches*;
inline void begin_capture(Stream stream) {
  stream->recording = std::make_unique<emulator::Launches>();
}
inline GraphHandle end_capture(Stream stream) { return stream->recording.release(); }
inline void abandon_capture(Stream stream) { stream->recording.reset(); }
inline void launch_graph(GraphHandle handle, Stream stream) {
  emulator::wait(*stream);
  for (const auto& launch : *handle) launch();
  emulator::wait(*stream);
}
inline void end_graph(GraphHandle handle) { delete handle; }
template <class Work>
double seconds_on(Stream, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
inline int count_multiprocessors(int) { return 4; }

}  // namespace plumb::PLUMB_GPU_VENDOR
