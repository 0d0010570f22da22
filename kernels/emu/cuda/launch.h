// Threads, barriers, shared memory and launches.
#pragma once

#include <algorithm>

#include "kernels/emu/cuda/vectors.h"
#include "kernels/gpu/gpu.h"

#define threadIdx (::plumb::emulator::current->thread)
#define blockIdx (::plumb::emulator::current->block)
#define blockDim (::plumb::emulator::current->block_size)
#define gridDim (::plumb::emulator::current->grid_size)
#define warpSize (::plumb::PLUMB_GPU_VENDOR::plain::lanes)

using cudaStream_t = plumb::PLUMB_GPU_VENDOR::Stream;

namespace plumb::PLUMB_GPU_VENDOR::plain {

inline thread_local int lanes = 32;  // of a wave of the launch that runs

// The queue of launches and copies that name none.
inline Stream stream_or_default(Stream stream) {
  static thread_local Stream queues[2] = {};
  if (stream) return stream;
  Stream& queue = queues[emulated_wave == 64];
  if (!queue) queue = make_stream();
  return queue;
}

// <<<grid, block, shared, stream>>>
struct Config {
  Config(dim3 g, dim3 b, size_t s = 0, Stream q = nullptr)
      : grid(g), block(b), shared(s), stream(stream_or_default(q)) {}
  dim3 grid, block;
  size_t shared;
  Stream stream;
};

// Throws DeviceError for what goes wrong in the kernel.
template <class Kernel, class... Arguments>
void launch(const char* name, Kernel kernel, const Config& config, Arguments... arguments) {
  const int width = config.stream->wave;
  const auto call = [=] {
    lanes = width;
    wait_for_previous_kernel();
    kernel(arguments...);
  };
  static_assert(std::is_trivially_copyable_v<decltype(call)>,
                "a kernel's arguments are copied as bytes");
  emulator::submit(
      {"cuda", name}, {config.grid.x, config.grid.y, config.grid.z},
      {config.block.x, config.block.y, config.block.z}, config.shared, *config.stream,
      [](const void* c) { (*static_cast<decltype(call)*>(c))(); }, &call, sizeof call);
}

// The block's one object of a __shared__ variable; Tag: the variable.
template <class T, class Tag, size_t Alignment = 1>
T& shared(Site site = Site::current()) {
  static_assert(std::is_trivially_default_constructible_v<T>);
  return *static_cast<T*>(emulator::shared_object(&detail::shared_key<T, Tag>, sizeof(T),
                                                  std::max(alignof(T), Alignment), site));
}

template <class T>
T* dynamic(Site site = Site::current()) {
  return static_cast<T*>(emulator::dynamic_shared(site));
}

// extern __shared__ outside of functions.
template <class T>
struct Dynamic {
  operator T*() const { return dynamic<T>(); }
};

}  // namespace plumb::PLUMB_GPU_VENDOR::plain

inline void __syncthreads(plumb::emulator::Site site = plumb::emulator::Site::current()) {
  plumb::emulator::block_barrier(site);
}
inline void __syncwarp(unsigned = ~0u,
                       plumb::emulator::Site site = plumb::emulator::Site::current()) {
  plumb::PLUMB_GPU_VENDOR::warp_barrier(site);
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] inline void __trap(plumb::emulator::Site site = plumb::emulator::Site::current()) {
  plumb::emulator::fault("__trap()", site);
}
