// gpu.h for nvcc. Wave width 32.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "kernels/core/dtype.h"
#include "kernels/core/error.h"

#define PLUMB_GPU_VENDOR cuda
#define PLUMB_SITE_PARAMETER
#define PLUMB_SITE_ARGUMENT

namespace plumb::cuda {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
using Stream = cudaStream_t;

// Throws DeviceError naming what was tried.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw DeviceError(
      text("[", what, "] ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

__device__ inline Dim thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
__device__ inline Dim block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
__device__ inline Dim block_size() { return {blockDim.x, blockDim.y, blockDim.z}; }
__device__ inline Dim grid_size() { return {gridDim.x, gridDim.y, gridDim.z}; }
__device__ inline void block_barrier() { __syncthreads(); }
__device__ inline void warp_barrier() { __syncwarp(); }
// Programmatic dependent launch (compute capability 9.0): blocks of the next kernel may take places
// that become free; this waits until the kernels before it have ended and their writes are visible.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

template <int Wave, class T>
__device__ inline T shuffle(T v, int lane) {
  static_assert(Wave == 32);
  return __shfl_sync(~0u, v, lane);
}
template <int Wave, class T>
__device__ inline T shuffle_xor(T v, int mask) {
  static_assert(Wave == 32);
  return __shfl_xor_sync(~0u, v, mask);
}
template <int Wave, class T>
__device__ inline T shuffle_down(T v, int n) {
  static_assert(Wave == 32);
  return __shfl_down_sync(~0u, v, n);
}
template <int Wave>
__device__ inline uint64_t ballot(bool b) {
  static_assert(Wave == 32);
  return __ballot_sync(~0u, b);
}

template <class T, class Tag = void>
__device__ inline T& block_shared() {
  __shared__ T storage;
  return storage;
}
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ uint4 plumb_dynamic_shared[];
  return reinterpret_cast<T*>(plumb_dynamic_shared);
}

template <class T>  // int, unsigned, float; returns the old value
__device__ inline T atomic_add(T* p, T v) {
  return atomicAdd(p, v);
}

// The order of fences and barriers is that of a grid-wide barrier: what the block wrote is released
// by the thread that adds, what others wrote is acquired by it and handed on by the second barrier.
__device__ inline bool last_to_pass(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) + 1 == blocks;
    if (last) *ticket = 0;  // all blocks have arrived
    __threadfence();
  }
  __syncthreads();
  return last;
}

__device__ inline float reciprocal_sqrt(float x) { return 1.0f / sqrtf(x); }
__device__ inline float approximate_reciprocal_sqrt(float x) { return rsqrtf(x); }
__device__ inline float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

// Exact to two units in the last place of float32 for moderate arguments, and several times faster.
__device__ inline float approximate_exp(float x) { return __expf(x); }
__device__ inline float approximate_exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
__device__ inline float approximate_quotient(float a, float b) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return a * reciprocal;
}

namespace detail {
#if __CUDA_ARCH__ >= 800
#define PLUMB_DEVICE_CONVERSIONS
__device__ inline float to_float(Float16 x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    T out;
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    }
    return out;
  }
}
#endif

#if __CUDA_ARCH__ >= 900
#define PLUMB_PACKED_ARITHMETIC
template <class T, Arithmetic Operation>
__device__ inline uint32_t of_pairs(uint32_t a, uint32_t b) {
  constexpr bool kBf16 = std::is_same_v<T, BFloat16>;
  uint32_t out;
  if constexpr (Operation == Arithmetic::product) {
    if constexpr (kBf16) {
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    } else {
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
  } else if constexpr (Operation == Arithmetic::sum) {
    if constexpr (kBf16) {
      asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    } else {
      asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
  } else {
    if constexpr (kBf16) {
      asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    } else {
      asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
  }
  return out;
}
template <class T>
__device__ inline uint32_t narrow_pair(float low, float high) {
  uint32_t out;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}
#endif

// States the alignment, which compilers lose in an unrolled loop: else one access becomes four.
template <class Word, bool Whole>
__device__ inline void copy_word(void* to, const void* from) {
  if constexpr (Whole) {
    *static_cast<Word*>(__builtin_assume_aligned(to, sizeof(Word))) =
        *static_cast<const Word*>(__builtin_assume_aligned(from, sizeof(Word)));
  } else {
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
  }
}

// A value that is never in memory: in loops, copies to a variable leave a store to the stack that
// nothing reads.
#define PLUMB_WORD_LOADS
template <size_t Bytes>
__device__ inline auto load_word(const void* from) {
  if constexpr (Bytes == 16) {
    return *static_cast<const uint4*>(from);
  } else if constexpr (Bytes == 8) {
    return *static_cast<const uint2*>(from);
  } else if constexpr (Bytes == 4) {
    return *static_cast<const uint32_t*>(from);
  } else if constexpr (Bytes == 2) {
    return *static_cast<const uint16_t*>(from);
  } else {
    static_assert(Bytes == 1);
    return *static_cast<const uint8_t*>(from);
  }
}
template <size_t Bytes, bool Whole>
__device__ inline void copy_aligned(void* to, const void* from) {
  if constexpr (Bytes == 16) {
    copy_word<uint4, Whole>(to, from);
  } else if constexpr (Bytes == 8) {
    copy_word<uint2, Whole>(to, from);
  } else if constexpr (Bytes == 4) {
    copy_word<uint32_t, Whole>(to, from);
  } else if constexpr (Bytes == 2) {
    copy_word<uint16_t, Whole>(to, from);
  } else {
    static_assert(Bytes == 1);
    copy_word<uint8_t, Whole>(to, from);
  }
}
}  // namespace detail

namespace detail {

// Whether the current device runs code of this kernel that really waits for the kernel before it.
template <auto Kernel>
bool waits_on_device(const char* name) {
  constexpr int kMostDevices = 64, kWaits = 90;                  // compute capability 9.0
  static std::array<std::atomic<int>, kMostDevices> versions{};  // 0: not asked yet
  int device = 0;
  check(cudaGetDevice(&device), name);
  if (device >= kMostDevices) return false;
  std::atomic<int>& version = versions[static_cast<size_t>(device)];
  if (version == 0) {
    cudaFuncAttributes code{};
    check(cudaFuncGetAttributes(&code, Kernel), name);
    version = std::min(code.ptxVersion, code.binaryVersion);
  }
  return version >= kWaits;
}

template <auto Kernel, class... Arguments>
void launch(const char* name, Dim grid, Dim block, size_t shared, Stream stream, bool overlapped,
            Arguments... arguments) {
  if (shared >= 48 * 1024) {  // with what a kernel declares it is more
    check(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          name);
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(block.x, block.y, block.z);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = overlapped ? 1 : 0;
  check(cudaLaunchKernelEx(&config, Kernel, arguments...), name);
}

}  // namespace detail

template <auto Kernel, class... Arguments>
void launch(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
            Arguments... arguments) {
  detail::launch<Kernel>(name, grid, block, shared, stream, false, arguments...);
}
template <auto Kernel, class... Arguments>
void launch_overlapped(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
                       Arguments... arguments) {
  detail::launch<Kernel>(name, grid, block, shared, stream, detail::waits_on_device<Kernel>(name),
                         arguments...);
}

template <class F>
void with_wave(Stream, F f) {
  f.template operator()<32>();
}

// --- Host side: memory, copies and the queue.

inline constexpr bool kExactMemory = false;
inline constexpr bool kChecksBounds = false;

inline void* memory_allocate(size_t bytes) {
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this is no lasting error: the next call must not report it
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw DeviceError(text("[memory] ", bytes, " bytes asked for, ", free, " of ", total,
                           " are free on this GPU: use a smaller case, or end what else uses it"));
  }
  check(error, "cudaMalloc");
  return p;
}
inline void memory_free(void* p) {
  cudaFree(p);
}  // at the end of a device: nothing left to report to
inline void* host_allocate(size_t bytes) {
  void* p = nullptr;
  check(cudaMallocHost(&p, bytes), "cudaMallocHost");
  return p;
}
inline void host_free(void* p) { cudaFreeHost(p); }
inline void memory_fill(void* p, uint8_t byte, size_t bytes, Stream stream) {
  check(cudaMemsetAsync(p, byte, bytes, stream), "cudaMemset");
}
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy to the device");
  check(cudaStreamSynchronize(stream), "copy to the device");
}
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "copy to the host");
  check(cudaStreamSynchronize(stream), "copy to the host");
}
inline void use_device(int ordinal) { check(cudaSetDevice(ordinal), "cudaSetDevice"); }
inline Stream make_stream() {
  Stream stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}
inline void end_stream(Stream stream) { cudaStreamDestroy(stream); }
inline void wait_for(Stream stream) { check(cudaStreamSynchronize(stream), "synchronize"); }
// Seconds between two events around the work.
template <class Work>
double seconds_on(Stream stream, const Work& work) {
  struct Event {
    cudaEvent_t event = nullptr;
    Event() { check(cudaEventCreate(&event), "cudaEventCreate"); }
    ~Event() { cudaEventDestroy(event); }
  } begin, end;
  check(cudaEventRecord(begin.event, stream), "cudaEventRecord");
  work();
  check(cudaEventRecord(end.event, stream), "cudaEventRecord");
  check(cudaEventSynchronize(end.event), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}
// What a stream is given between begin_capture and end_capture, to be launched as a whole.
using GraphHandle = cudaGraphExec_t;
inline void begin_capture(Stream stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}
inline GraphHandle end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  GraphHandle handle = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&handle, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  return handle;
}
inline void abandon_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // why it is abandoned is known
}
inline void launch_graph(GraphHandle handle, Stream stream) {
  check(cudaGraphLaunch(handle, stream), "cudaGraphLaunch");
}
inline void end_graph(GraphHandle handle) { cudaGraphExecDestroy(handle); }
inline int count_multiprocessors(int ordinal) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal), "multiprocessors");
  return count;
}

}  // namespace plumb::cuda
