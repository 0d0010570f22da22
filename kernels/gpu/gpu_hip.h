// gpu.h for hipcc. Wave width 64 (CDNA) or 32 (RDNA): asked of the device, never of the compiler,
// whose host pass sees another constant than its device pass.
#pragma once

#include <hip/hip_runtime.h>

#include "kernels/core/error.h"

#define PLUMB_GPU_VENDOR hip
#define PLUMB_SITE_PARAMETER
#define PLUMB_SITE_ARGUMENT

namespace plumb::hip {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
using Stream = hipStream_t;

// Throws DeviceError naming what was tried.
inline void check(hipError_t error, const char* what) {
  if (error == hipSuccess) return;
  throw DeviceError(text("[", what, "] ", hipGetErrorName(error), ": ", hipGetErrorString(error)));
}

__device__ inline Dim thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
__device__ inline Dim block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
__device__ inline Dim block_size() { return {blockDim.x, blockDim.y, blockDim.z}; }
__device__ inline Dim grid_size() { return {gridDim.x, gridDim.y, gridDim.z}; }
__device__ inline void block_barrier() { __syncthreads(); }
__device__ inline void warp_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
__device__ inline void wait_for_previous_kernel() {}  // kernels of a stream never overlap
__device__ inline void prefetch(const void*) {}       // and there is no time to use

template <int Wave, class T>
__device__ inline T shuffle(T v, int lane) {
  return __shfl(v, lane, Wave);
}
template <int Wave, class T>
__device__ inline T shuffle_xor(T v, int mask) {
  return __shfl_xor(v, mask, Wave);
}
template <int Wave, class T>
__device__ inline T shuffle_down(T v, int n) {
  return __shfl_down(v, n, Wave);
}
template <int Wave>
__device__ inline uint64_t ballot(bool b) {
  return __ballot(b);
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

__device__ inline bool last_to_pass(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) + 1 == blocks;
    if (last) *ticket = 0;  // all blocks have arrived
  }
  __syncthreads();
  __threadfence();
  return last;
}

__device__ inline float reciprocal_sqrt(float x) { return 1.0f / sqrtf(x); }
__device__ inline float approximate_reciprocal_sqrt(float x) { return rsqrtf(x); }
__device__ inline float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline float approximate_exp(float x) { return __expf(x); }
__device__ inline float approximate_exp2(float x) { return exp2f(x); }
__device__ inline float approximate_quotient(float a, float b) {
  return a * __builtin_amdgcn_rcpf(b);
}

namespace detail {
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

inline int device_wave() {
  int device = 0, width = 0;
  check(hipGetDevice(&device), "hipGetDevice");
  check(hipDeviceGetAttribute(&width, hipDeviceAttributeWarpSize, device), "wave width");
  return width;
}
}  // namespace detail

template <auto Kernel, class... Arguments>
void launch(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
            Arguments... arguments) {
  Kernel<<<dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), shared, stream>>>(
      arguments...);
  check(hipGetLastError(), name);
}

template <auto Kernel, class... Arguments>
void launch_overlapped(const char* name, Dim grid, Dim block, size_t shared, Stream stream,
                       Arguments... arguments) {
  launch<Kernel>(name, grid, block, shared, stream, arguments...);
}

template <class F>
void with_wave(Stream, F f) {  // the stream's device is the current one
  if (detail::device_wave() == 64) {
    f.template operator()<64>();
  } else {
    f.template operator()<32>();
  }
}

// --- Host side: memory, copies and the queue.

inline constexpr bool kExactMemory = false;
inline constexpr bool kChecksBounds = false;

inline void* memory_allocate(size_t bytes) {
  void* p = nullptr;
  const hipError_t error = hipMalloc(&p, bytes);
  if (error == hipErrorOutOfMemory) {
    (void)hipGetLastError();  // this is no lasting error: the next call must not report it
    size_t free = 0, total = 0;
    (void)hipMemGetInfo(&free, &total);
    throw DeviceError(text("[memory] ", bytes, " bytes asked for, ", free, " of ", total,
                           " are free on this GPU: use a smaller case, or end what else uses it"));
  }
  check(error, "hipMalloc");
  return p;
}
inline void memory_free(void* p) {
  (void)hipFree(p);
}  // at the end of a device: nothing left to report to
inline void* host_allocate(size_t bytes) {
  void* p = nullptr;
  check(hipHostMalloc(&p, bytes, 0), "hipHostMalloc");
  return p;
}
inline void host_free(void* p) { (void)hipHostFree(p); }
inline void memory_fill(void* p, uint8_t byte, size_t bytes, Stream stream) {
  check(hipMemsetAsync(p, byte, bytes, stream), "hipMemset");
}
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream stream) {
  check(hipMemcpyAsync(to, from, bytes, hipMemcpyHostToDevice, stream), "copy to the device");
  check(hipStreamSynchronize(stream), "copy to the device");
}
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream stream) {
  check(hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToHost, stream), "copy to the host");
  check(hipStreamSynchronize(stream), "copy to the host");
}
inline void use_device(int ordinal) { check(hipSetDevice(ordinal), "hipSetDevice"); }
inline Stream make_stream() {
  Stream stream = nullptr;
  check(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking), "hipStreamCreate");
  return stream;
}
inline void end_stream(Stream stream) { (void)hipStreamDestroy(stream); }
inline void wait_for(Stream stream) { check(hipStreamSynchronize(stream), "synchronize"); }
// Seconds between two events around the work.
template <class Work>
double seconds_on(Stream stream, const Work& work) {
  struct Event {
    hipEvent_t event = nullptr;
    Event() { check(hipEventCreate(&event), "hipEventCreate"); }
    ~Event() { (void)hipEventDestroy(event); }
  } begin, end;
  check(hipEventRecord(begin.event, stream), "hipEventRecord");
  work();
  check(hipEventRecord(end.event, stream), "hipEventRecord");
  check(hipEventSynchronize(end.event), "hipEventSynchronize");
  float milliseconds = 0;
  check(hipEventElapsedTime(&milliseconds, begin.event, end.event), "hipEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}
// What a stream is given between begin_capture and end_capture, to be launched as a whole.
using GraphHandle = hipGraphExec_t;
inline void begin_capture(Stream stream) {
  check(hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal), "hipStreamBeginCapture");
}
inline GraphHandle end_capture(Stream stream) {
  hipGraph_t graph = nullptr;
  check(hipStreamEndCapture(stream, &graph), "hipStreamEndCapture");
  GraphHandle handle = nullptr;
  const hipError_t error = hipGraphInstantiate(&handle, graph, nullptr, nullptr, 0);
  (void)hipGraphDestroy(graph);
  check(error, "hipGraphInstantiate");
  return handle;
}
inline void abandon_capture(Stream stream) {
  hipGraph_t graph = nullptr;
  (void)hipStreamEndCapture(stream, &graph);
  if (graph) (void)hipGraphDestroy(graph);
  (void)hipGetLastError();  // why it is abandoned is known
}
inline void launch_graph(GraphHandle handle, Stream stream) {
  check(hipGraphLaunch(handle, stream), "hipGraphLaunch");
}
inline void end_graph(GraphHandle handle) { (void)hipGraphExecDestroy(handle); }
inline int count_multiprocessors(int ordinal) {
  int count = 0;
  check(hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, ordinal),
        "multiprocessors");
  return count;
}

}  // namespace plumb::hip
